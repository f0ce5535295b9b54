/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ingress hooks: how each reads a frame, and how it sends one. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "decide.h"

char _license[] SEC("license") = "Dual BSD/GPL";

/* Only what a variable refers to gets into the BTF that the Go types come from. */
const struct {
	enum verdict verdicts;
	enum table_sizes sizes;
} * go_needs __attribute__((unused));

/* Native XDP on an uplink. Frames in several buffers must come to it whole where
 * the MTU is large (xdp.frags), so that they can be passed. Linux 5.18. */
SEC("xdp.frags")
int uplink_rx_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame f = {
		.ifindex = ctx->ingress_ifindex,
		.len = end - data,
		.multi_buffer = bpf_xdp_get_buff_len(ctx) != (__u64)(end - data),
	};
	enum verdict v;
	__u32 slot, out = 0;
	int action = XDP_PASS;

	if (data + sizeof(struct ethhdr) <= end)
		f.eth = data;
	v = decide(&f, &slot, &out);
	if (v == VERDICT_REDIRECTED) {
		action = bpf_redirect_map(&tx_ports, out, XDP_PASS);
		if (action != XDP_REDIRECT)
			v = VERDICT_PASS_NO_DEVICE;
	}
	count(slot, v);
	return action;
}

/* tc ingress of a guest's tap, by tcx or clsact: the frame keeps its partial
 * checksum and its segmentation offload on the way. */
SEC("tc")
int guest_rx(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct frame f = {
		.ifindex = skb->ifindex,
		/* A frame to be segmented later goes out in pieces that fit. */
		.len = skb->gso_size ? 0 : skb->len,
		.tagged = skb->vlan_present,
	};
	enum verdict v;
	__u32 slot, out = 0;

	if (data + sizeof(struct ethhdr) <= end)
		f.eth = data;
	v = decide(&f, &slot, &out);
	count(slot, v);
	return v == VERDICT_REDIRECTED ? bpf_redirect(out, 0) : TC_ACT_UNSPEC;
}

/* Pushes the deadline forward. The daemon runs it by BPF_PROG_RUN, because a
 * process cannot read jiffies. */
SEC("xdp")
int renew(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct switch_control *ctl = bpf_map_lookup_elem(&control, &zero);

	if (ctl) {
		ctl->renewed = bpf_jiffies64();
		ctl->deadline = ctl->renewed + ctl->lease;
	}
	return XDP_PASS;
}
