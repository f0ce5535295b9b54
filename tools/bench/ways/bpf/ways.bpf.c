/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the fast path is measured against. Each program does one thing and
 * nothing else, so that the differences between them are the costs.
 *
 * All XDP programs are xdp.frags (Linux 5.18), because the datapath's is, and a
 * tail call only works among programs that agree in this.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual BSD/GPL";

enum {
	STATIONS_MAX = 65536,
};

/* The addresses of one frame, and the device that it must leave by. */
struct station {
	__u8 dest[ETH_ALEN];
	__u8 source[ETH_ALEN];
	__u32 ifindex;
};

_Static_assert(sizeof(struct station) == 16, "four stations in a cache line");

/* ifindex of the one tap that limit, limit_array and tc_redirect send to. */
const volatile __u32 egress;

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} tx_hash SEC(".maps");

/* Slot 0 holds egress. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tx_array SEC(".maps");

/* The frames that spray makes, in order. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STATIONS_MAX);
	__type(key, __u32);
	__type(value, struct station);
} stations SEC(".maps");

/* Slot 0 holds the program that spray hands its frames to. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} under_test SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} counted SEC(".maps");

/* TPID << 16 | TCI of the tag that spray writes into frames, 0 for none. The frames
 * must have one. */
const volatile __u32 spray_tag;

/* How many of stations are in use. */
const volatile __u32 stations_used = 1;

/* One producer thread runs spray, so its place in the table is not per CPU. */
__u32 next_station;

struct sprayed {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	__u32 ifindex; /* where limit_sprayed finds the device to send to */
} __attribute__((packed));

/* The price of the generator itself: every way contains it. */
SEC("xdp.frags")
int bench_floor(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* The least that a redirect into a tap costs: no parsing, no look-up of ours. */
SEC("xdp.frags")
int bench_limit(struct xdp_md *ctx)
{
	return bpf_redirect_map(&tx_hash, egress, XDP_PASS);
}

/* The same by an array of devices, whose key can't be an ifindex. */
SEC("xdp.frags")
int limit_array(struct xdp_md *ctx)
{
	return bpf_redirect_map(&tx_array, 0, XDP_PASS);
}

/* The same for sprayed frames: spray has written the device into the frame. */
SEC("xdp.frags")
int limit_sprayed(struct xdp_md *ctx)
{
	struct sprayed *frame = (void *)(long)ctx->data;

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	return bpf_redirect_map(&tx_hash, frame->ifindex, XDP_PASS);
}

/* Lets frames into the stack, as if the device had no program. */
SEC("xdp.frags")
int bench_pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* The bare redirect at the tc hook, after the kernel has made an skb. */
SEC("tcx/ingress")
int tc_redirect(struct __sk_buff *skb)
{
	return bpf_redirect(egress, 0);
}

/* Addresses the frame to and from the next pair of stations and hands it to the
 * program under test, so that the programs are compared on the same frames. */
SEC("xdp.frags")
int spray(struct xdp_md *ctx)
{
	struct sprayed *frame = (void *)(long)ctx->data;
	struct station *station;
	__u32 at = next_station;

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	next_station = at + 1 < stations_used ? at + 1 : 0;
	station = bpf_map_lookup_elem(&stations, &at);
	if (!station)
		return XDP_ABORTED;
	__builtin_memcpy(frame->eth.h_dest, station->dest, ETH_ALEN);
	__builtin_memcpy(frame->eth.h_source, station->source, ETH_ALEN);
	if (spray_tag) { /* a program that takes it off moves the addresses over it */
		__be32 tag = bpf_htonl(spray_tag);

		__builtin_memcpy((void *)frame + 2 * ETH_ALEN, &tag, sizeof(tag));
	}
	frame->ifindex = station->ifindex;
	bpf_tail_call(ctx, &under_test, 0);
	return XDP_ABORTED;
}

/* A floor that counts, for tests of the generator. */
SEC("xdp.frags")
int bench_count(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *n = bpf_map_lookup_elem(&counted, &zero);

	if (n)
		__sync_fetch_and_add(n, 1);
	return XDP_DROP;
}
