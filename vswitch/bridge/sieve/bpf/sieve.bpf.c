/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A filter of an rtnetlink socket. It lets through what concerns bridges, but of
 * forwarding entries that the socket's owner neither has nor is about to hear of
 * only what is there to be had: no deletions, and none of ports that have no room.
 *
 * What it has let through it notes, so that later word of the same entry follows.
 * Of entries it knows a hash: some that are nobody's pass too.
 */
#include <linux/bpf.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual BSD/GPL";

#define AF_BRIDGE      7
#define PASS           0xffffffff
#define DROP           0
#define MAX_ATTRIBUTES 16
#define MAX_PORTS      4096

#define HELD_BITS      19 /* by hash of an entry: 512 KB a table */
#define HELD_SIZE      (1 << HELD_BITS)

/* Bytes rather than bits: they are set without an atomic operation. */
struct sieve_shared {
	__u64 seed[2];
	__u64 marked; /* how often a place of the table in force was taken */
	/* Bit 1 says which table is in force; bit 0, that the other one is to be
	 * filled too. */
	__u32 mode;
	__u32 pad;
	__u8 held[2][HELD_SIZE];
	__u8 missed[HELD_SIZE]; /* word of these was not let through */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sieve_shared);
} shared SEC(".maps");

/* Ports without room, by ifindex, and how many new entries of theirs were dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, __u64);
} shut SEC(".maps");

struct message {
	struct nlmsghdr header;
	struct ndmsg neighbour;
};

/* Gives the place of an entry in the tables, or -1 if the message has none. */
static __always_inline __s64 entry_place(struct __sk_buff *skb, const struct sieve_shared *s)
{
	__u32 at = sizeof(struct message), bridge = 0;
	__u16 vlan = 0;
	__u64 mac = 0;

	for (int i = 0; i < MAX_ATTRIBUTES; i++) {
		struct rtattr a;

		if (bpf_skb_load_bytes(skb, at, &a, sizeof(a)) || a.rta_len < sizeof(a))
			break;
		switch (a.rta_type) {
		case NDA_LLADDR:
			if (a.rta_len != sizeof(a) + 6 ||
			    bpf_skb_load_bytes(skb, at + sizeof(a), &mac, 6))
				return -1;
			break;
		case NDA_MASTER:
			if (bpf_skb_load_bytes(skb, at + sizeof(a), &bridge, sizeof(bridge)))
				return -1;
			break;
		case NDA_VLAN:
			if (bpf_skb_load_bytes(skb, at + sizeof(a), &vlan, sizeof(vlan)))
				return -1;
			break;
		}
		at += RTA_ALIGN(a.rta_len);
	}
	if (!bridge)
		return -1;
	__u64 mixed = ((mac | (__u64)vlan << 48) + bridge * 0x9e3779b97f4a7c15ULL) * s->seed[0];

	mixed ^= mixed >> 32;
	return mixed * s->seed[1] >> (64 - HELD_BITS);
}

static __always_inline int pass_held(struct sieve_shared *s, __u32 place, __u32 mode)
{
	place &= HELD_SIZE - 1;
	if (!s->held[mode >> 1 & 1][place]) {
		s->held[mode >> 1 & 1][place] = 1;
		__sync_fetch_and_add(&s->marked, 1);
	}
	if (mode & 1)
		s->held[~mode >> 1 & 1][place] = 1;
	return PASS;
}

SEC("socket")
int sieve(struct __sk_buff *skb)
{
	struct sieve_shared *s;
	struct message m;
	__u32 zero = 0, port, mode;
	__u64 *dropped;
	__s64 place;

	if (bpf_skb_load_bytes(skb, 0, &m, sizeof(m)))
		return PASS;
	if (m.header.nlmsg_type != RTM_NEWNEIGH && m.header.nlmsg_type != RTM_DELNEIGH)
		return PASS;
	/* The host's ARP traffic, and the tables of tunnels. */
	if (m.neighbour.ndm_family != AF_BRIDGE || m.neighbour.ndm_flags & NTF_SELF)
		return DROP;
	s = bpf_map_lookup_elem(&shared, &zero);
	if (!s)
		return PASS;
	place = entry_place(skb, s);
	if (place < 0)
		return PASS;
	place &= HELD_SIZE - 1;
	mode = *(volatile __u32 *)&s->mode;
	if (s->held[mode >> 1 & 1][place])
		return pass_held(s, place, mode);
	if (m.header.nlmsg_type == RTM_NEWNEIGH) {
		if (m.neighbour.ndm_state & (NUD_PERMANENT | NUD_NOARP) ||
		    m.neighbour.ndm_flags & NTF_EXT_LEARNED)
			return pass_held(s, place, mode); /* not learned: nobody's share */
		port = m.neighbour.ndm_ifindex;
		dropped = bpf_map_lookup_elem(&shut, &port);
		if (!dropped)
			return pass_held(s, place, mode);
		__sync_fetch_and_add(dropped, 1);
	}
	s->missed[place] = 1;
	return DROP;
}
