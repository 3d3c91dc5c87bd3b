package providers

// HostReporter is implemented by providers with hosts of their own, so that a class shows which of them cannot be used.
type HostReporter interface {
	// Hosts is what the last calls found out about each host of the class. It is asked after every Check and makes no call
	// of its own: Check looks at every host, and fails only when the class as a whole cannot be used.
	Hosts() []HostState
}

// HostState is what is known of one host.
type HostState struct {
	// Name of the host in the class.
	Name string
	// Checked is false as long as no call has reached an outcome.
	Checked bool
	// Err is why the host cannot be used, of the taxonomy in errors.go; nil when the last call went through.
	Err error
}
