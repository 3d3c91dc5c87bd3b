package v1alpha1

// Labels. Everything under crawl.example.com/ is the operator's, except what is listed as set by users.
const (
	// LabelPool is the name of the pool a Proxy belongs to.
	LabelPool = GroupName + "/pool"
	// LabelRevision is the template revision a Proxy of a pool was made from.
	LabelRevision = GroupName + "/revision"
	// LabelClusterID, LabelProxyUID, LabelProxyName and LabelClass mark what a provider made: the only licence to delete it.
	LabelClusterID = GroupName + "/cluster-id"
	LabelProxyUID  = GroupName + "/proxy-uid"
	LabelProxyName = GroupName + "/proxy"
	LabelClass     = GroupName + "/class"

	// LabelCloudInit on a Secret, set by users to "true", lets the operator read it as user data.
	LabelCloudInit = GroupName + "/cloud-init"
	// LabelProxyCredentials on a Secret, set by users to "true", lets the operator read it as a proxy's credentials.
	LabelProxyCredentials = GroupName + "/proxy-credentials"
)

// Annotations.
const (
	// AnnotationSkipCleanup, set by users to "true", releases a Proxy without deleting its instance, or a ProviderClass with
	// instances that are left.
	AnnotationSkipCleanup = GroupName + "/skip-cleanup"
	// AnnotationGCConfirm, set by users on a ProviderClass to a number, lets the orphan collection delete that many instances
	// although it stopped because there are so many. The operator lowers the number with each deletion and takes the
	// annotation away with the last.
	AnnotationGCConfirm = GroupName + "/gc-confirm"
	// AnnotationFirstIntent, set by provider managers together with their finalizer, says that and where the first instance of
	// a Proxy is about to be created, until status.instance does.
	AnnotationFirstIntent = GroupName + "/first-intent"
	// AnnotationDeletionCost, set by users, orders the members of a pool on scale-down: lower goes first.
	AnnotationDeletionCost = GroupName + "/deletion-cost"
	// AnnotationInstanceHash on what a provider made is the hash of what it was made from.
	AnnotationInstanceHash = GroupName + "/instance-hash"
	// AnnotationBundleVersion on a CRD is the version of the schema.
	AnnotationBundleVersion = GroupName + "/bundle-version"
)

// Finalizers.
const (
	// FinalizerInstancePrefix and the provider's type make the finalizer of the provider manager on a Proxy.
	FinalizerInstancePrefix = GroupName + "/instance-"
	// FinalizerLeaseDrain is core's finalizer on a Proxy with a drain timeout.
	FinalizerLeaseDrain = GroupName + "/lease-drain"
	// FinalizerClassInUse is core's finalizer on a ProviderClass while a Proxy is bound to it.
	FinalizerClassInUse = GroupName + "/class-in-use"
	// FinalizerClassInstances is the provider manager's finalizer on a ProviderClass while it has instances.
	FinalizerClassInstances = GroupName + "/class-instances"
)

// FinalizerInstance is the finalizer of the provider manager of a type on a Proxy. The slash of a third-party type becomes
// a dash: a finalizer has one slash.
func FinalizerInstance(t ProviderType) string {
	name := []byte(t)
	for i, c := range name {
		if c == '/' {
			name[i] = '-'
		}
	}
	return FinalizerInstancePrefix + string(name)
}
