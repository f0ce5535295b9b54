// Package control lets people and programs look into a running switch: an
// HTTP API with JSON on a unix socket, its client, and Prometheus metrics.
//
// The API only reads. Every path answers GET with an object or a list of the
// types here, and any error with {"error": "…"}:
//
//	/v1/status   Status
//	/v1/ports    []Port
//	/v1/fdb      []FDBEntry, filtered by bridge=NAME, mac=ADDRESS, port=NAME
//	/v1/drops    []Drop
//	/v1/stats    []Stats
//	/metrics     Prometheus metrics
package control
