/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef DECIDE_H
#define DECIDE_H

#include <linux/if_ether.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>

#include "fdb.h"
#include "flow.h"
#include "ports.h"

/* A frame as a hook has read it. The hooks differ in how they read a frame and
 * how they send it; what becomes of it is decided in one place. */
struct frame {
	const struct ethhdr *eth; /* NULL: the first buffer holds no whole header */
	__u32 ifindex;            /* of the port that it came in by */
	__u32 len;                /* bytes from the destination address on; 0: cut to fit later */
	bool tagged;              /* its tag has been taken out of the frame already */
	bool multi_buffer;
	const void *end; /* of the first buffer */
	bool choose;     /* whether bulk TCP should go another way */
};

static __always_inline bool has_tag(const struct ethhdr *eth)
{
	return eth->h_proto == bpf_htons(ETH_P_8021Q) || eth->h_proto == bpf_htons(ETH_P_8021AD);
}

/* Says what to do with a frame. *slot is the ingress port's, for the counters,
 * and *out the ifindex to redirect to if the verdict is VERDICT_REDIRECTED. */
static __always_inline enum verdict decide(const struct frame *f, __u32 *slot, __u32 *out)
{
	__u64 now = bpf_jiffies64();
	struct port *in = NULL;
	__u32 zero = 0, *seen, dest;

	*slot = port_slot(f->ifindex, &in);
	if (!*slot || !in)
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
	if (f->tagged || has_tag(f->eth))
		return VERDICT_PASS_TAGGED;

	bool bulk = f->choose && flow_bulk(ctl, f->eth, f->end, f->len, in->bridge, now);

	/* Wherever it goes, in most bridges: the tc hook asks all the rest again. */
	if (bulk && !(in->flags & PORT_UNMERGED))
		return VERDICT_PASS_BULK;

	dest = fdb_find(ctl, in->bridge, fdb_key(f->eth->h_source, 0), &seen);
	if (!dest || (dest & 0xffff) != *slot)
		return VERDICT_PASS_LEARN;
	/* Written rarely, so that CPUs don't pull the line from each other. */
	if ((__u32)now - *seen >= ctl->seen_every)
		*seen = (__u32)now ?: 1;

	dest = fdb_find(ctl, in->bridge, fdb_key(f->eth->h_dest, 0), &seen) & 0xffff;
	if (!dest)
		return VERDICT_PASS_UNKNOWN;
	if (dest == FDB_HOST)
		return VERDICT_PASS_HOST;
	if (dest == *slot)
		return VERDICT_PASS_SAME_PORT;
	struct port *to = bpf_map_lookup_elem(&ports, &dest);

	if (!to || !(to->flags & PORT_OUT))
		return VERDICT_PASS_EGRESS_HELD;
	if (bulk && !(to->flags & PORT_UNMERGED))
		return VERDICT_PASS_BULK;
	if (f->len > to->max_frame)
		return VERDICT_PASS_TOO_LONG;
	*out = to->ifindex;
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
