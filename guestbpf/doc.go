// Package guestbpf attaches programs to a guest's own devices, at native XDP. It
// needs Linux 5.10 and CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN.
package guestbpf
