/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef DECIDE_H
#define DECIDE_H

#include "fdb.h"
#include "filter.h"
#include "flow.h"
#include "ports.h"
#include "vlan.h"

/* Where a frame goes whose verdict is VERDICT_REDIRECTED. */
struct way {
	__u32 ifindex; /* to redirect to */
	__u32 tag;     /* that it leaves with */
};

/* Says what to do with a frame that has come in by the port in a slot. */
static __always_inline enum verdict decide(const struct frame *f, __u32 slot, struct way *way)
{
	__u64 now = bpf_jiffies64();
	__u32 zero = 0, *seen, dest, vid = 0;
	struct port *in = bpf_map_lookup_elem(&ports, &slot);

	if (!slot || !in)
		return VERDICT_PASS_NO_PORT;
	struct switch_control *ctl = bpf_map_lookup_elem(&control, &zero);

	if (!ctl || now >= ctl->deadline)
		return VERDICT_PASS_EXPIRED;
	if (!(in->flags & PORT_IN))
		return VERDICT_PASS_HELD;
	if (!f->eth)
		return VERDICT_PASS_SHORT;
	if (f->multi_buffer)
		return VERDICT_PASS_MULTI_BUFFER;
	if (f->eth->h_dest[0] & 1)
		return VERDICT_PASS_GROUP;
	way->tag = f->tag;
	if (in->vlan) {
		/* A tag of the other kind is payload to the bridge. */
		if (f->tag && (f->tag ^ in->vlan) >> 16)
			return VERDICT_PASS_TAGGED;
		vid = f->tag & VLAN_VID ?: in->vlan & VLAN_VID;
		if (!(port_vlan(slot, vid) & VLAN_MEMBER))
			return VERDICT_PASS_VLAN;
		way->tag = (in->vlan & ~0xffff) | (f->tag & 0xffff & ~VLAN_VID) | vid;
	} else if (f->tag && port_vlan(slot, f->tag) & VLAN_MEMBER) {
		return VERDICT_PASS_VLAN;
	}

	bool bulk = f->choose && flow_bulk(ctl, f, in->bridge, now);

	/* Wherever it goes, in most bridges: the tc hook asks all the rest again. */
	if (bulk && !(in->flags & PORT_UNMERGED))
		return VERDICT_PASS_BULK;

	dest = fdb_find(ctl, in->bridge, fdb_key(f->eth->h_source, vid), &seen);
	if (!dest || (dest & 0xffff) != slot)
		return VERDICT_PASS_LEARN;
	/* Written rarely, so that CPUs don't pull the line from each other. */
	if ((__u32)now - *seen >= ctl->seen_every)
		*seen = (__u32)now ?: 1;

	dest = fdb_find(ctl, in->bridge, fdb_key(f->eth->h_dest, vid), &seen) & 0xffff;
	if (!dest)
		return VERDICT_PASS_UNKNOWN;
	if (dest == FDB_HOST)
		return VERDICT_PASS_HOST;
	if (dest == slot)
		return VERDICT_PASS_SAME_PORT;
	struct port *to = bpf_map_lookup_elem(&ports, &dest);

	if (!to || (to->flags & (PORT_OUT | f->avoid)) != PORT_OUT)
		return VERDICT_PASS_EGRESS_HELD;
	if (in->flags & to->flags & PORT_ISOLATED)
		return VERDICT_PASS_ISOLATED;
	if (bulk && !(to->flags & PORT_UNMERGED))
		return VERDICT_PASS_BULK;
	if (f->len > to->max_frame)
		return VERDICT_PASS_TOO_LONG;
	if (in->vlan) {
		__u32 bits = port_vlan(dest, vid);

		if (!(bits & VLAN_MEMBER))
			return VERDICT_PASS_VLAN;
		if (bits & VLAN_UNTAGGED)
			way->tag = 0;
	}
	if ((in->flags | to->flags) & PORT_FILTERED) {
		if (in->flags & PORT_FILTERED && !filter_lets(f, slot, f->tag, true))
			return VERDICT_PASS_FILTERED;
		if (to->flags & PORT_FILTERED && !filter_lets(f, dest, way->tag, false))
			return VERDICT_PASS_FILTERED;
	}
	way->ifindex = to->ifindex;
	return VERDICT_REDIRECTED;
}

static __always_inline void count(__u32 slot, enum hook hook, enum verdict v)
{
	__u32 at = slot * HOOKS + hook;
	struct verdict_counts *c = bpf_map_lookup_elem(&verdicts, &at);

	if (c)
		c->frames[v % VERDICT_SLOTS]++;
}

#endif
