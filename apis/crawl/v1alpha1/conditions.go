package v1alpha1

import "slices"

// Field managers. Every write names one of them; each owns a part of the status that no other touches.
const (
	// ManagerCore is the core manager.
	ManagerCore = "egress-core"
	// ManagerLeasing is the allocator, a part of the core manager with a slice of its own.
	ManagerLeasing = "egress-leasing"
	// ManagerProviderPrefix and the provider's type make the name of a provider manager.
	ManagerProviderPrefix = "egress-provider-"
)

// ManagerProvider is the field manager of the provider manager of a type. The slash of a third-party type is not legal in
// a field manager's name and becomes a dash.
func ManagerProvider(t ProviderType) string {
	name := []byte(ManagerProviderPrefix + string(t))
	for i, c := range name {
		if c == '/' {
			name[i] = '-'
		}
	}
	return string(name)
}

// StatusSlice is the part of a kind's status that one field manager owns: whole top-level fields by their JSON name, and
// condition types. A writer always writes its whole slice.
type StatusSlice struct {
	Fields     []string
	Conditions []string
}

// Proxy conditions by owner.
const (
	// ConditionAccepted of a Proxy (core): a class has taken it; of a ProviderClass (provider): the configuration is valid.
	ConditionAccepted = "Accepted"
	// ConditionReady (core) is the summary: the proxy may be used.
	ConditionReady = "Ready"
	// ConditionHealthy (core) is the verdict of the health engine.
	ConditionHealthy = "Healthy"
	// ConditionAccessRestricted (core) says that strangers, loopback and metadata addresses are refused. It is a gate: without it a
	// Managed proxy is not leased.
	ConditionAccessRestricted = "AccessRestricted"
	// ConditionDrained (core) says that no lease is left on a proxy that is asked to drain.
	ConditionDrained = "Drained"

	// ConditionProvisioned (provider; External: core) says that the instance runs and has an address.
	ConditionProvisioned = "Provisioned"
	// ConditionUpToDate (provider) says that the instance is what the specification asks for.
	ConditionUpToDate = "UpToDate"
	// ConditionCloudInitReady (provider) says that the user data could be resolved.
	ConditionCloudInitReady = "CloudInitReady"
	// ConditionCleanupBlocked (provider) says why a deletion does not get on and how to get out.
	ConditionCleanupBlocked = "CleanupBlocked"
)

// ProviderClass and ProxyPool conditions.
const (
	// ConditionGarbageCollection of a ProviderClass (provider) is the result of the last sweep.
	ConditionGarbageCollection = "GarbageCollection"
	// ConditionAvailable of a ProxyPool: enough replicas are available.
	ConditionAvailable = "Available"
	// ConditionProgressing of a ProxyPool: a rollout or scaling gets on.
	ConditionProgressing = "Progressing"
	// ConditionRemediationAllowed of a ProxyPool: not too many replicas are unhealthy at once.
	ConditionRemediationAllowed = "RemediationAllowed"
	// ConditionDrainBlocked of a ProxyPool: a draining proxy waits for its leases.
	ConditionDrainBlocked = "DrainBlocked"
	// ConditionQuotaExceeded of a ProxyPool: the provider refuses more instances.
	ConditionQuotaExceeded = "QuotaExceeded"
)

// ProxyLease conditions, all by the allocator.
const (
	// ConditionBound: the lease holds a proxy.
	ConditionBound = "Bound"
	// ConditionProxyReady: the lease's proxy is ready.
	ConditionProxyReady = "ProxyReady"
	// ConditionDraining: the lease's proxy is asked to drain; the message has the deadline.
	ConditionDraining = "Draining"
	// ConditionOvercommitted: the proxy carries more leases than its capacity, which was lowered.
	ConditionOvercommitted = "Overcommitted"
)

// coreProxyConditions are the Proxy conditions of the core manager, for a Managed proxy.
var coreProxyConditions = []string{ConditionAccepted, ConditionReady, ConditionHealthy, ConditionAccessRestricted, ConditionDrained}

// ProxySlice is the ownership table of Proxy.status: what a field manager owns on a proxy of the given mode.
// External proxies have no provider manager; core owns that part of theirs.
func ProxySlice(manager string, mode ProxyMode) StatusSlice {
	provider := StatusSlice{
		Fields:     []string{"instance"},
		Conditions: []string{ConditionProvisioned, ConditionUpToDate, ConditionCloudInitReady, ConditionCleanupBlocked},
	}
	switch manager {
	case ManagerCore:
		core := StatusSlice{
			Fields:     []string{"observedGeneration", "phase", "binding", "health", "egressIdentity"},
			Conditions: slices.Clone(coreProxyConditions),
		}
		if mode == ModeExternal {
			core.Fields = append(core.Fields, provider.Fields...)
			core.Conditions = append(core.Conditions, provider.Conditions...)
		}
		return core
	case ManagerLeasing:
		return StatusSlice{Fields: []string{"cooldowns", "exclusive"}}
	default:
		return provider
	}
}

// Reasons of Proxy conditions. The set is closed for writers and open for readers.
const (
	ReasonPending = "Pending"

	// Accepted
	ReasonBound               = "Bound"
	ReasonExternal            = "External"
	ReasonClassNotFound       = "ClassNotFound"
	ReasonClassNotAccepted    = "ClassNotAccepted"
	ReasonClassReplaced       = "ClassReplaced"
	ReasonClassTerminating    = "ClassTerminating"
	ReasonNamespaceNotAllowed = "NamespaceNotAllowed"
	ReasonCloudInitDenied     = "CloudInitDenied"

	// Ready
	ReasonReady                     = "Ready"
	ReasonNotAccepted               = "NotAccepted"
	ReasonNotProvisioned            = "NotProvisioned"
	ReasonNotHealthy                = "NotHealthy"
	ReasonHealthUnknown             = "HealthUnknown"
	ReasonTerminating               = "Terminating"
	ReasonWaitingForProviderManager = "WaitingForProviderManager"

	// Healthy
	ReasonHealthy         = "Healthy"
	ReasonInstanceChanged = "InstanceChanged"
	ReasonNotProbed       = "NotProbed"
	ReasonCheckDisabled   = "CheckDisabled"
	ReasonInvalidCheck    = "InvalidCheck"

	// AccessRestricted
	ReasonRestricted   = "Restricted"
	ReasonOpen         = "Open"
	ReasonNotManaged   = "NotManaged"
	ReasonInconclusive = "Inconclusive"

	// Credentials
	ReasonCredentialsNotFound = "CredentialsNotFound"
	ReasonCredentialsInvalid  = "CredentialsInvalid"

	// Drained
	ReasonDraining     = "Draining"
	ReasonDrained      = "Drained"
	ReasonNotRequested = "NotRequested"

	// Provisioned, UpToDate, CloudInitReady, CleanupBlocked
	ReasonRunning             = "Running"
	ReasonCreating            = "Creating"
	ReasonStarting            = "Starting"
	ReasonDeleting            = "Deleting"
	ReasonReplacing           = "Replacing"
	ReasonWaitingForCapacity  = "WaitingForCapacity"
	ReasonRateLimited         = "RateLimited"
	ReasonInvalidSpec         = "InvalidSpec"
	ReasonAuthFailed          = "AuthFailed"
	ReasonProviderUnreachable = "ProviderUnreachable"
	ReasonNameCollision       = "NameCollision"
	ReasonInstanceMissing     = "InstanceMissing"
	ReasonInstanceLost        = "InstanceLost"
	ReasonInstanceFailed      = "InstanceFailed"
	ReasonCreateVanished      = "CreateVanished"
	ReasonProvisionTimeout    = "ProvisionTimeout"
	ReasonUpToDate            = "UpToDate"
	ReasonSpecChanged         = "SpecChanged"
	ReasonCloudInitResolved   = "CloudInitResolved"
	ReasonCloudInitError      = "CloudInitError"
	ReasonNotBlocked          = "NotBlocked"
	ReasonStillTerminating    = "StillTerminating"

	// ProviderClass, and its hosts
	ReasonAccepted      = "Accepted"
	ReasonInvalidConfig = "InvalidConfig"
	ReasonUnsupported   = "Unsupported"
	ReasonReachable     = "Reachable"
	ReasonUnreachable   = "Unreachable"
	ReasonNotChecked    = "NotChecked"

	// GarbageCollection
	ReasonClean          = "Clean"
	ReasonOrphansFound   = "OrphansFound"
	ReasonTooManyOrphans = "TooManyOrphans"
	ReasonListFailed     = "ListFailed"
	ReasonDisabled       = "Disabled"

	// ProxyPool
	ReasonScaling             = "Scaling"
	ReasonReplicasReady       = "ReplicasReady"
	ReasonReplicasNotReady    = "ReplicasNotReady"
	ReasonMinimumAvailable    = "MinimumReplicasAvailable"
	ReasonMinimumNotAvailable = "MinimumReplicasUnavailable"
	ReasonComplete            = "Complete"
	ReasonTooManyUnhealthy    = "TooManyUnhealthy"
	ReasonWithinLimit         = "WithinLimit"
	ReasonRecycling           = "Recycling"
	ReasonRollingOut          = "RollingOut"
	ReasonPaused              = "Paused"
	ReasonProgressDeadline    = "ProgressDeadlineExceeded"

	// ProxyLease
	ReasonGranted         = "Granted"
	ReasonNoProxy         = "NoProxyAvailable"
	ReasonAtCapacity      = "AtCapacity"
	ReasonCooling         = "Cooling"
	ReasonPinnedBusy      = "PinnedBusy"
	ReasonProxyNotFound   = "ProxyNotFound"
	ReasonPoolNotFound    = "PoolNotFound"
	ReasonInvalidSelector = "InvalidSelector"
	ReasonUnsatisfiable   = "Unsatisfiable"
	ReasonExpired         = "Expired"
	ReasonReleased        = "Released"
	ReasonProxyReplaced   = "ProxyReplaced"
	ReasonProxyDeleted    = "ProxyDeleted"
	ReasonProxyUnhealthy  = "ProxyUnhealthy"
	ReasonDrainDeadline   = "DrainDeadline"
	ReasonConflict        = "Conflict"

	// Overcommitted
	ReasonAboveCapacity  = "AboveCapacity"
	ReasonWithinCapacity = "WithinCapacity"
)
