package classify

// Reasons of conditions and labels of metrics: a closed set of constants, never text from a proxy or a target.
const (
	ReasonProbeSucceeded = "ProbeSucceeded"

	// The proxy itself.
	ReasonAddressNotAllowed = "AddressNotAllowed" // the dial policy denies the proxy's address
	ReasonNameNotResolved   = "NameNotResolved"   // the proxy's name does not exist
	ReasonConnectionRefused = "ConnectionRefused"
	ReasonConnectionFailed  = "ConnectionFailed" // host unreachable, reset while dialling
	ReasonDialTimeout       = "DialTimeout"
	ReasonConnectTimeout    = "ConnectTimeout" // TCP works, CONNECT is never answered
	ReasonConnectClosed     = "ConnectClosed"  // TCP works, CONNECT is answered by closing
	ReasonProxyAuthFailed   = "ProxyAuthFailed"
	ReasonConnectDenied     = "ConnectDenied"
	ReasonProxyThrottled    = "ProxyThrottled"
	ReasonNotATunnel        = "NotATunnel"

	// The way from the proxy to the target.
	ReasonEgressFailed   = "EgressFailed"
	ReasonTLSIntercepted = "TLSIntercepted"
	ReasonNoResponse     = "NoResponse" // verified TLS, then no HTTP answer

	// The target's answer.
	ReasonUnexpectedStatus = "UnexpectedStatus"
	ReasonUnexpectedBody   = "UnexpectedBody"

	// Ours: never held against a proxy.
	ReasonLocalResources = "LocalResources" // file descriptors, ports, buffers
	ReasonLocalNetwork   = "LocalNetwork"   // no route, forbidden by a local firewall
	ReasonLocalResolver  = "LocalResolver"  // our resolver does not answer
	ReasonLocalCPU       = "LocalCPU"       // a timeout while this process did not get its CPU time
	ReasonCancelled      = "Cancelled"      // shutdown, or the proxy changed while it was probed
)

// Reasons of AccessRestricted.
const (
	ReasonForbiddenTargetsRefused = "ForbiddenTargetsRefused" // True
	ReasonMetadataReachable       = "MetadataReachable"       // False
	ReasonLoopbackReachable       = "LoopbackReachable"       // False
	ReasonAnonymousAccess         = "AnonymousAccess"         // False
	ReasonInconclusive            = "Inconclusive"            // unknown
)
