package guest

// What a guest's root file system has of ours.
const (
	// ConfigPath is where the Config is, in JSON.
	ConfigPath = "/testvm/config.json"
	// ModuleDir has the modules' files, named NAME.ko.
	ModuleDir = "/testvm/modules"
	// PortName is the name of the virtio-serial port to the host.
	PortName = "testvm"
)

// A Config says how a guest gets ready.
type Config struct {
	Modules []string // to load, in order
	Env     []string // of commands
}
