// Package control lets people and programs look into a running switch: an
// HTTP API with JSON on a unix socket, its client, and Prometheus metrics.
//
// Paths that read answer GET, those that change something POST, with an object or
// a list of the types here, and any error with {"error": "…"}:
//
//	/v1/status   Status
//	/v1/ports    []Port
//	/v1/fdb      []FDBEntry, filtered by bridge=NAME, mac=ADDRESS, port=NAME
//	/v1/drops    []Drop
//	/v1/stats    []Stats
//	/metrics     Prometheus metrics
//	/v1/pause    Pause, by POST with name=PORT or BRIDGE and for=DURATION like 60s
//	/v1/resume   Pause, by POST with name=PORT or BRIDGE
//
// POST to /v1/hook takes what libvirt tells a hook script: the XML as the body, the
// rest as the query's driver, object, operation, sub_operation and extra.
package control
