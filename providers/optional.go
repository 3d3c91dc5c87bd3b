package providers

// Wrapper is implemented by what is put around a Provider, such as providers/guard.
type Wrapper interface {
	// Unwrap gives the Provider inside.
	Unwrap() Provider
}

// Find gives the outermost part of p that implements T, an optional interface such as HostReporter, and whether there is
// one. A provider need not know what it is wrapped in, and a wrapper need not know the optional interfaces.
func Find[T any](p Provider) (T, bool) {
	for p != nil {
		if found, ok := p.(T); ok {
			return found, true
		}
		wrapper, ok := p.(Wrapper)
		if !ok {
			break
		}
		p = wrapper.Unwrap()
	}
	var none T
	return none, false
}
