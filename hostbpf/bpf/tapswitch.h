/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef TAPSWITCH_H
#define TAPSWITCH_H

/*
 * Layouts and numbers that the datapath shares with the daemon. bpf2go makes
 * the Go types from these, so each is written once. They outlive both in pinned
 * maps: a change of a layout needs a new pin directory (layoutVersion in pin.go).
 */

#include <linux/types.h>

/* Numbers are stable and never used again for something else; vswitch/verdict.go
 * says what each means. */
enum verdict {
	VERDICT_REDIRECTED = 0,
	VERDICT_PASS_EXPIRED = 1,
	VERDICT_PASS_NO_PORT = 2,
	VERDICT_PASS_HELD = 3,
	VERDICT_PASS_SHORT = 4,
	VERDICT_PASS_MULTI_BUFFER = 5,
	VERDICT_PASS_GROUP = 6,
	VERDICT_PASS_TAGGED = 7,
	VERDICT_PASS_LEARN = 8,
	VERDICT_PASS_UNKNOWN = 9,
	VERDICT_PASS_HOST = 10,
	VERDICT_PASS_SAME_PORT = 11,
	VERDICT_PASS_TOO_LONG = 12,
	VERDICT_PASS_EGRESS_HELD = 13,
	VERDICT_PASS_NO_DEVICE = 14,
	VERDICT_PASS_BULK = 15,
	VERDICT_PASS_PARTIAL = 16,
	VERDICT_PASS_ISOLATED = 17,
	VERDICT_PASS_VLAN = 18,
	VERDICT_PASS_NO_ROOM = 19,
	VERDICT_PASS_FILTERED = 20,
	VERDICT_SLOTS = 32, /* room for later verdicts without a new layout */
};

/* The places where the datapath meets a frame. A frame that XDP passes comes to
 * the tc hook of its port too, merged with others if it is bulk. */
enum hook {
	HOOK_TC = 0,
	HOOK_XDP = 1,
	HOOKS = 2,
};

/* Frames by verdict, one of these per port, hook and CPU. */
struct verdict_counts {
	__u64 frames[VERDICT_SLOTS];
};

/* What the whole datapath obeys. One cache line. */
struct switch_control {
	__u64 deadline;    /* jiffies after which every frame passes */
	__u64 seed[3];     /* odd multipliers of the FDB's hashes, secret from guests */
	__u64 renewed;     /* jiffies at the last renewal */
	__u32 lease;       /* jiffies from a renewal to the deadline */
	__u32 seen_every;  /* jiffies between two notes of one source address */
	__u32 tx_ports_id; /* map id of tx_ports, to tell our redirects from others' */
	__u32 netns;       /* inode of the network namespace that the ports are in */
	__u32 bulk_len;    /* bytes from which on a TCP frame makes its flow bulk, 0: never */
	__u32 bulk_idle;   /* jiffies without such a frame after which it is not */
};

enum port_flags {
	PORT_IN = 1,       /* frames may come in by the fast path */
	PORT_OUT = 2,      /* frames may leave by the fast path */
	PORT_ISOLATED = 4, /* no frames between two such ports */
	PORT_QUEUED = 8,   /* frames leave through its qdisc alone, which XDP goes past */
	/* Of a guest: its tap takes no merged TCP segments, so that XDP is the faster way
	 * for bulk too. Of an uplink: its bridge has such a guest. */
	PORT_UNMERGED = 16,
	PORT_FILTERED = 32, /* not all frames may take the fast path, see struct port_filter */
};

enum table_sizes {
	PORT_SLOTS = 1024, /* slot 0 stands for no port */
	PORT_INDEX_SIZE = 16384,
	PORT_INDEX_PROBES = 4,
	PORT_INDEX_STRIDE = 61, /* between the VLANs of one device, which never meet */
	FDB_BUCKET_BITS = 15,
	FDB_BUCKETS = 1 << FDB_BUCKET_BITS,
	FDB_WAYS = 4,      /* of 16 bytes: a bucket is one cache line */
	FDB_HOST = 0xffff, /* in place of a slot: the host's own stack */
	FDB_USED = 0x8000, /* in a key's upper quarter, so that no frame's key is 0 */
	LOSS_KINDS = 8192,
	FLOW_BITS = 16,
	FLOWS = 1 << FLOW_BITS,
	VLAN_WORDS = 4096 / 32,
	FILTER_SOURCES = 8,
	FILTER_OUT = 16,
};

/* Parts of an entry of the port index, beside ifindex, VLAN and slot. */
enum port_index_bits {
	PORT_CARRIER = 0x8000, /* the device has VLANs that are ports of their own */
	PORT_VLAN = 0x4000,    /* the entry is about one VLAN */
	PORT_VLAN_AD = 0x1000, /* whose TPID is 802.1ad's */
};

/* One port, by slot. ifindex and bridge of a slot in use never change; flags
 * and max_frame change by single stores. */
struct port {
	__u32 ifindex;
	__u32 bridge_ifindex;
	__u32 bridge; /* dense number of the bridge, upper half of fdb_entry.dest */
	enum port_flags flags;
	__u32 max_frame; /* bytes from the destination address on */
	__u32 role;      /* vswitch.Role, for the daemon that adopts the port */
	__u32 vlan;      /* of a VLAN-aware bridge: its TPID << 16 | the port's PVID; else 0 */
	__u32 carrier;   /* ifindex of the device that has its XDP program, for the daemon */
};

/* What a VLAN is to a port, two bits. On a bridge that is not VLAN-aware VLAN_MEMBER
 * says that the VLAN's frames are not for the bridge, but for a VLAN device. */
enum vlan_bits {
	VLAN_MEMBER = 1,
	VLAN_UNTAGGED = 2, /* they leave without a tag */
};

/* The VLANs of one port, by slot: vlan_bits of 32 VLANs in each word. */
struct port_vlans {
	__u64 of[VLAN_WORDS];
};

enum frame_kinds {
	FRAME_IPV4 = 1,
	FRAME_IPV6 = 2,
	FRAME_OTHER = 4, /* with a tag too */
};

/* What a filter is sure to let through at one port, by slot. */
struct port_filter {
	__u64 source; /* address that frames come from, as in a forwarding entry's key; 0: any */
	/* frame_kinds that may come in by the fast path, and << FILTER_OUT those that may
	 * leave by it. */
	__u32 kinds;
	__u32 sources; /* number of addresses that IPv4 packets may come from, 0: any */
	__u32 ipv4[FILTER_SOURCES]; /* in network order; the first again where there are fewer */
	__u64 unused[2];
};

/*
 * One forwarding entry. Only the daemon writes key and dest, each by one store:
 * dest before key when it adds an entry, key alone when it removes one, and a
 * removed entry is used again only when no program can still be looking at it.
 * So a reader that has found key in an entry whose dest names its bridge has
 * found a true entry.
 */
struct fdb_entry {
	__u64 key;  /* MAC in the order of its bytes in memory, then FDB_USED | VLAN; 0: free */
	__u32 dest; /* bridge << 16 | port's slot or FDB_HOST */
	__u32 seen; /* low half of jiffies when last seen as a source, 0: never */
};

struct fdb_bucket {
	struct fdb_entry way[FDB_WAYS];
};

/* A frame that was lost after its verdict. */
struct loss_key {
	__u32 ifindex; /* the port it should have left by */
	__s32 err;     /* negative errno; 0: the device took fewer frames than it was given */
};

/* What the devmap handed to a port, one of these per port and CPU. */
struct flush_counts {
	__u64 flushes;
	__u64 frames; /* taken by the device */
	__u64 lost;
};

_Static_assert(sizeof(struct switch_control) == 64, "control is one cache line");
_Static_assert(sizeof(struct port) == 32, "two ports in a cache line");
_Static_assert(sizeof(struct port_filter) == 64, "a filter is one cache line");
_Static_assert(sizeof(struct fdb_bucket) == 64, "a bucket is one cache line");

#endif
