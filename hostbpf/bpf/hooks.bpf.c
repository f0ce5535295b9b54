/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ingress hooks: how each reads a frame, and how it sends one. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "decide.h"
#include "partial.h"

char _license[] SEC("license") = "Dual BSD/GPL";

/* Only what a variable refers to gets into the BTF that the Go types come from. */
const struct {
	enum verdict verdicts;
	enum table_sizes sizes;
	enum hook hooks;
	enum port_index_bits index;
	enum frame_kinds kinds;
} * go_needs __attribute__((unused));

/* Bytes of the headers of Ethernet, a tag and a PPPoE session, without all of which
 * br_netfilter drops a frame. No real frame is shorter, so it costs nothing to ask
 * for as much in place of Ethernet's header alone. */
#define SHORTEST  (14 + 4 + 8)

/* Bytes of the headers of Ethernet and IPv4, which filters look at. */
#define LOOKED_AT (14 + 20)

/* Reads and sends a frame at an XDP hook. choose is frame.choose; complete says that
 * all frames are. */
static __always_inline int xdp(struct xdp_md *ctx, bool choose, bool complete)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame f = {
		.len = end - data,
		.multi_buffer = bpf_xdp_get_buff_len(ctx) > (__u64)(end - data),
		.end = end,
		.choose = choose,
		.avoid = PORT_QUEUED,
	};
	struct way way = {};
	__u32 slot = port_find(ctx->ingress_ifindex, 0), tag = 0, carried;
	bool inner = false;
	enum verdict v;
	int action = XDP_PASS;

	if (data + SHORTEST <= end) {
		f.eth = data;
		if (is_tpid(f.eth->h_proto)) {
			f.tag = tag =
				bpf_ntohs(f.eth->h_proto) << 16 | bpf_ntohs(*(__be16 *)(f.eth + 1));
			f.tags = VLAN_LEN;
			f.len -= VLAN_LEN;
		}
	}
	if (tag && slot & PORT_CARRIER) {
		carried = port_find(ctx->ingress_ifindex, vlan_key(tag));
		if (carried) {
			slot = carried;
			f.tag = 0;
			inner = is_tpid(*((__be16 *)(f.eth + 1) + 1));
		}
	}
	slot &= ~PORT_CARRIER;
	/* The VLAN device takes one tag off: what is to become of two is for tc. */
	v = inner ? VERDICT_PASS_TAGGED : decide(&f, slot, &way);
	if (v == VERDICT_REDIRECTED && !complete && partial(f.eth, end))
		v = VERDICT_PASS_PARTIAL;
	if (v == VERDICT_REDIRECTED) {
		action = bpf_redirect_map(&tx_ports, way.ifindex, XDP_PASS);
		if (action != XDP_REDIRECT) {
			v = VERDICT_PASS_NO_DEVICE;
		} else if (way.tag != tag && !xdp_retag(ctx, tag, way.tag)) {
			v = VERDICT_PASS_NO_ROOM;
			action = XDP_PASS;
		}
	}
	count(slot, HOOK_XDP, v);
	return action;
}

/* Reads and sends a frame at a tc hook, by tcx or clsact: it keeps its partial
 * checksum and its segmentation offload on the way. */
static __always_inline int tc(struct __sk_buff *skb)
{
	/* A frame to be segmented may have all of its bytes elsewhere. */
	if ((void *)(long)skb->data + LOOKED_AT > (void *)(long)skb->data_end &&
	    skb->len >= SHORTEST)
		bpf_skb_pull_data(skb, skb->len < LOOKED_AT ? SHORTEST : LOOKED_AT);

	/* Read anew: the verifier does not take pointers that may be from before. */
	void *data = (void *)(long)*(volatile __u32 *)&skb->data;
	void *end = (void *)(long)*(volatile __u32 *)&skb->data_end;
	struct frame f = {
		/* A frame to be segmented later goes out in pieces that fit. */
		.len = skb->gso_size ? 0 : skb->len,
		.tag = skb->vlan_present ? bpf_ntohs(skb->vlan_proto) << 16 | skb->vlan_tci : 0,
		.end = end,
	};
	__u32 slot = port_find(skb->ifindex, 0) & ~PORT_CARRIER;
	struct way way = {};
	enum verdict v;

	if (data + SHORTEST <= end)
		f.eth = data;
	v = decide(&f, slot, &way);
	if (v == VERDICT_REDIRECTED && way.tag != f.tag && !tc_retag(skb, f.tag, way.tag))
		v = VERDICT_PASS_NO_ROOM;
	count(slot, HOOK_TC, v);
	return v == VERDICT_REDIRECTED ? bpf_redirect(way.ifindex, 0) : TC_ACT_UNSPEC;
}

/* Native XDP on an uplink. Frames in several buffers must come to it whole where
 * the MTU is large (xdp.frags), so that they can be passed; see frags.go. */
SEC("xdp.frags")
int uplink_rx_xdp(struct xdp_md *ctx)
{
	return xdp(ctx, true, true);
}

/* tc ingress of an uplink, after GRO: what XDP left to it, or everything where
 * the driver has no native XDP. */
SEC("tc")
int uplink_rx(struct __sk_buff *skb)
{
	return tc(skb);
}

/* Native XDP on a guest's tap, for guests that send complete frames alone: XDP
 * does not see the virtio-net header. Frames with one come to it in generic mode, if
 * they are to be segmented: they pass, as they have no checksum. */
SEC("xdp.frags")
int guest_rx_xdp(struct xdp_md *ctx)
{
	return xdp(ctx, false, false);
}

/* tc ingress of a guest's tap. */
SEC("tc")
int guest_rx(struct __sk_buff *skb)
{
	return tc(skb);
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
