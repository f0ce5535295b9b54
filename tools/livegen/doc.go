// Package livegen sends frames without a NIC: it runs a real XDP program on real
// frames as if a device had received them, and the kernel carries out what the
// program decides (BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18).
//
// It knows exactly how many frames it sent and how much CPU time they cost the
// thread that sent them, which is the price of a frame up to the point where
// another thread takes it over.
package livegen
