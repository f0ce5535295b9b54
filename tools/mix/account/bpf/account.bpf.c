/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whose CPU time is it? All machines of a lab share one kernel, and a frame's way
 * through the host runs in whatever context is at hand: the sender's system call,
 * the reader's, ksoftirqd. But it enters a machine by one of two functions: the
 * NAPI poll of a veth, which holds XDP, GRO, the bridge and the transmission into
 * the next device, and netif_receive_skb() for what was written to a tap. Both run
 * with softirqs off, so neither sleeps, changes its CPU, or has the other's machine
 * inside. Tracepoints mark them, because not every kernel lets fentry at functions.
 *
 * The kernel marks the end of a poll, not its beginning, which is that of the
 * softirq or the end of the poll before. The backlog's is that of the machine whose
 * frame went up last. And a poll that has used up its budget hands its merged
 * frames up after its mark: there, each frame that goes up or out claims the time
 * for its machine.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual BSD/GPL";

enum {
	MACHINES_MAX = 24,
	NET_RX_SOFTIRQ = 3, /* linux/interrupt.h */
};

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

struct napi_struct {
	struct net_device *dev;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct net_device *dev;
} __attribute__((preserve_access_index));

/* The namespaces' inode numbers; index 0 stays for all that are none of these. */
const volatile __u32 machines[MACHINES_MAX];
/* The process whose threads are stations and relays, and which the kernel charges
 * for softirqs that run on top of them. */
__u32 self;

/* Nanoseconds of one machine. */
struct spent {
	__u64 on_self;   /* on top of this process's threads */
	__u64 elsewhere; /* ksoftirqd, idle, other processes */
};

struct cpu {
	__u64 since;    /* up to when time has been given to a machine */
	__u32 polling;  /* in the softirq that receives */
	__u32 tail;     /* after a poll that used up its budget */
	__u32 depth;    /* of netif_receive_skb() outside of it */
	__u32 receiver; /* the machine of the outermost */
	__u32 on_self;
	__u32 seen; /* the machine of the last frame that went up */
	struct spent spent[MACHINES_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

static __always_inline struct cpu *this_cpu(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

/* The backlog, which a veth without NAPI hands its frames to, is of no device: 0. */
static __always_inline __u32 machine(struct net_device *dev)
{
	return dev->nd_net.net->ns.inum;
}

static __always_inline bool is_self(void)
{
	return (__u32)(bpf_get_current_pid_tgid() >> 32) == self;
}

/* Gives the time since time was last given to a machine. */
static __always_inline void give(struct cpu *c, __u32 inum)
{
	__u64 now = bpf_ktime_get_ns(), spent = now - c->since;
	__u32 owner = 0;

	c->since = now;
#pragma unroll
	for (int i = 1; i < MACHINES_MAX; i++) {
		if (machines[i] && machines[i] == inum)
			owner = i;
	}
	if (c->on_self)
		c->spent[owner].on_self += spent;
	else
		c->spent[owner].elsewhere += spent;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_enter, unsigned int vector)
{
	struct cpu *c;

	if (vector != NET_RX_SOFTIRQ || !(c = this_cpu()))
		return 0;
	c->polling = 1;
	c->tail = 0;
	c->on_self = is_self();
	c->since = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/napi_poll")
int BPF_PROG(polled, struct napi_struct *napi, int work, int budget)
{
	struct cpu *c = this_cpu();
	__u32 owner;

	if (!c || !c->polling)
		return 0;
	owner = machine(napi->dev);
	give(c, owner ? owner : c->seen);
	c->tail = work >= budget;
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(received, struct sk_buff *skb)
{
	struct cpu *c = this_cpu();

	if (!c || !c->polling)
		return 0;
	c->seen = machine(skb->dev);
	if (c->tail)
		give(c, c->seen);
	return 0;
}

SEC("tp_btf/net_dev_xmit")
int BPF_PROG(sent, struct sk_buff *skb, int rc, struct net_device *dev, unsigned int len)
{
	struct cpu *c = this_cpu();

	if (c && c->polling && c->tail)
		give(c, machine(dev));
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_leave, unsigned int vector)
{
	struct cpu *c;

	if (vector == NET_RX_SOFTIRQ && (c = this_cpu()))
		c->polling = 0;
	return 0;
}

SEC("tp_btf/netif_receive_skb_entry")
int BPF_PROG(receive_enter, struct sk_buff *skb)
{
	struct cpu *c = this_cpu();

	if (!c || c->polling || c->depth++)
		return 0;
	c->on_self = is_self();
	c->receiver = machine(skb->dev);
	c->since = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/netif_receive_skb_exit")
int BPF_PROG(receive_leave, int ret)
{
	struct cpu *c = this_cpu();

	/* Without depth, its entry was before the programs were attached. */
	if (!c || c->polling || !c->depth || --c->depth)
		return 0;
	give(c, c->receiver);
	return 0;
}

/* Run by BPF_PROG_RUN: only the kernel knows the caller's number in the first PID
 * namespace. */
SEC("syscall")
int claim(void *ctx)
{
	self = bpf_get_current_pid_tgid() >> 32;
	return 0;
}
