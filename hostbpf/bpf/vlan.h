/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef VLAN_H
#define VLAN_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../bpf/ether.h"
#include "maps.h"

/*
 * Tags as the programs handle them: TPID << 16 | TCI in the host's byte order, 0 for
 * none. XDP finds a tag in the frame, tc beside it.
 */

/* Gives vlan_bits of a VLAN for the port in a slot. */
static __always_inline __u32 port_vlan(__u32 slot, __u32 vid)
{
	struct port_vlans *v = bpf_map_lookup_elem(&port_vlans, &slot);

	return v ? v->of[(vid & VLAN_VID) / 32] >> (vid % 32 * 2) & 3 : 0;
}

/* Changes the tag of a frame at an XDP hook. It fails, and changes nothing, if there
 * is no room for one. Pointers into the frame are void after it. */
static __always_inline bool xdp_retag(struct xdp_md *ctx, __u32 from, __u32 to)
{
	struct vlan_tag tag = { bpf_htons(to >> 16), bpf_htons(to) };
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct {
		__u64 a;
		__u32 b;
	} __attribute__((packed)) macs;
	int move = (from ? VLAN_LEN : 0) - (to ? VLAN_LEN : 0);

	if (data + sizeof(macs) > end)
		return false;
	__builtin_memcpy(&macs, data, sizeof(macs));
	if (move && bpf_xdp_adjust_head(ctx, move))
		return false;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + sizeof(macs) + sizeof(tag) > end)
		return false; /* can't be: it was longer than that before */
	__builtin_memcpy(data, &macs, sizeof(macs));
	if (to)
		__builtin_memcpy(data + sizeof(macs), &tag, sizeof(tag));
	return true;
}

/* Changes the tag of a frame at a tc hook, where it is not in the frame. It leaves alone
 * frames to be segmented whose next tag would become the outer one: the kernel would take
 * that out too, and tell the receiver of shorter headers than the bridge does. */
static __always_inline bool tc_retag(struct __sk_buff *skb, __u32 from, __u32 to)
{
	if (from && !to && skb->gso_size && is_tpid(skb->protocol))
		return false;
	if (from && bpf_skb_vlan_pop(skb))
		return false;
	return !to || !bpf_skb_vlan_push(skb, bpf_htons(to >> 16), to & 0xffff);
}

#endif
