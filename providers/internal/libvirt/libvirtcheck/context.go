package libvirtcheck

import "context"

// cleanupContext is for what is taken away after a test, whose own context has ended by then.
func cleanupContext() context.Context { return context.Background() }
