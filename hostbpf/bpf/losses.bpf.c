/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Frames that the kernel lost after our verdict: its tracepoints are their only
 * witnesses. They see all redirects of the machine, so each first asks whether
 * the frame was ours. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ports.h"

char _license[] SEC("license") = "Dual BSD/GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_prog;

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};

#pragma clang attribute pop

static __always_inline void lose(__u32 ifindex, int err, __u64 frames)
{
	struct loss_key key = { .ifindex = ifindex, .err = err };
	__u64 *count = bpf_map_lookup_elem(&losses, &key), zero = 0;

	if (!count) {
		bpf_map_update_elem(&losses, &key, &zero, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&losses, &key);
		if (!count)
			return;
	}
	__sync_fetch_and_add(count, frames);
}

/* One flush of up to 16 frames to a device. */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(devmap_xmit, const struct net_device *from, const struct net_device *to, int sent,
	     int drops, int err)
{
	__u32 ifindex = to->ifindex, zero = 0, slot;
	struct switch_control *ctl = bpf_map_lookup_elem(&control, &zero);
	struct flush_counts *c;

	/* Numbers of devices repeat in other network namespaces. */
	if (!ctl || to->nd_net.net->ns.inum != ctl->netns)
		return 0;
	slot = port_find(ifindex, 0) & ~PORT_CARRIER;
	if (!slot)
		return 0;
	c = bpf_map_lookup_elem(&flushes, &slot);
	if (c) {
		c->flushes++;
		c->frames += sent > 0 ? sent : 0;
		c->lost += drops;
	}
	if (drops > 0)
		lose(ifindex, err, drops);
	return 0;
}

/* A frame that did not even reach the queue to its device. */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(redirect_err, const struct net_device *from, const struct bpf_prog *prog,
	     const void *target, int err, enum bpf_map_type map_type, __u32 map_id, __u32 index)
{
	__u32 zero = 0;
	struct switch_control *ctl = bpf_map_lookup_elem(&control, &zero);

	if (ctl && map_id == ctl->tx_ports_id)
		lose(index, err, 1);
	return 0;
}
