// Package kubernetes provisions proxies as Squid pods in the cluster the operator runs in.
//
// One instance is one pod, in the namespace of its Proxy and owned by it, so that Kubernetes itself collects it when the
// Proxy is gone without a manager having seen it. The pod carries its own configuration: an annotation that a downward
// API volume shows as squid.conf; so there is no second object that could be missing, stale or left over. Only a proxy
// with credentials has one: a Secret of the pod's name with the hash of the password. It is written before the pod,
// belongs to the Proxy and is written again by the next Create.
//
// What the fields of a Proxy mean here: placement.zone is the node label topology.kubernetes.io/zone; placement.image,
// placement.machineType and cloudInit are refused, since the class decides what runs beside other people's pods.
// A changed credentials Secret replaces the pod, as a changed port does: the controller counts it into the hash.
package kubernetes
