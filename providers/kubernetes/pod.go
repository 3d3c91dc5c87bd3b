package kubernetes

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// DefaultImage is the image of a class that names none.
	DefaultImage = "ubuntu/squid:6.6-24.04_edge"
	// containerName is the name of the one container.
	containerName = "squid"
	// portName is the name of the proxy's port.
	portName = "proxy"
	// squidUser is the user and group "proxy" of Debian's and Ubuntu's packages. Squid must run as it from the start: if
	// it changed to it, it could no longer open the container's output.
	squidUser int64 = 13
	// firstUnprivilegedPort is the first port that a process without capabilities may listen on by default.
	firstUnprivilegedPort = 1024
	// terminationGraceSeconds is above what Squid takes after SIGTERM: shutdownSeconds and about two more.
	terminationGraceSeconds = shutdownSeconds + 7
	// startupTries is how often, a second apart, a new Squid is asked whether it listens before it is started again.
	startupTries = 120

	// annotationConfig holds the configuration of the pod's Squid.
	annotationConfig = v1alpha1.GroupName + "/squid-config"
	// annotationSafeToEvict keeps the cluster autoscaler from removing a proxy's node: every lease on it would lose its
	// address. It is the same for all, since what is leased changes faster than the autoscaler looks.
	annotationSafeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"

	labelAppName   = "app.kubernetes.io/name"
	labelManagedBy = "app.kubernetes.io/managed-by"
	appName        = "egress-proxy"
	managedBy      = "egress-proxies-operator"
)

// DefaultResources are the resources of a class that names none.
func DefaultResources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("50m"),
			corev1.ResourceMemory: resource.MustParse("64Mi"),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
	}
}

// settings are what a class says about its pods.
type settings struct {
	class     string
	image     string
	resources corev1.ResourceRequirements
	// config lacks what the Proxy decides: the port and whether it asks for credentials.
	config Config
}

// ownerLabels mark everything that is made for a Proxy.
func ownerLabels(owner providers.Owner, class string) map[string]string {
	return map[string]string{
		v1alpha1.LabelClusterID: owner.ClusterID,
		v1alpha1.LabelProxyUID:  string(owner.UID),
		v1alpha1.LabelProxyName: owner.Name,
		v1alpha1.LabelClass:     class,
		labelAppName:            appName,
		labelManagedBy:          managedBy,
	}
}

// ownerOf reads the labels back.
func ownerOf(object metav1.Object) providers.Owner {
	labels := object.GetLabels()
	owner := providers.Owner{
		ClusterID: labels[v1alpha1.LabelClusterID],
		Name:      labels[v1alpha1.LabelProxyName],
		Namespace: object.GetNamespace(),
	}
	owner.UID = uidOf(labels[v1alpha1.LabelProxyUID])
	return owner
}

func metadata(req providers.CreateRequest, class string) metav1.ObjectMeta {
	labels := map[string]string{}
	for key, value := range req.Labels {
		// What is under the operator's prefix is copied only where selectors of pods need it.
		if !strings.HasPrefix(key, v1alpha1.GroupName+"/") || key == v1alpha1.LabelPool || key == v1alpha1.LabelRevision {
			labels[key] = value
		}
	}
	maps.Copy(labels, ownerLabels(req.Owner, class))
	return metav1.ObjectMeta{
		Namespace:   req.Owner.Namespace,
		Name:        req.Name,
		Labels:      labels,
		Annotations: map[string]string{v1alpha1.AnnotationInstanceHash: req.Hash},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion:         v1alpha1.SchemeGroupVersion.String(),
			Kind:               "Proxy",
			Name:               req.Owner.Name,
			UID:                req.Owner.UID,
			Controller:         new(true),
			BlockOwnerDeletion: new(true),
		}},
	}
}

// newPod is the pod of one Proxy. It satisfies the restricted Pod Security Standard.
func newPod(s settings, req providers.CreateRequest) *corev1.Pod {
	config := s.config
	config.Port = req.Spec.Port
	config.Authenticate = req.Credentials != nil

	pod := &corev1.Pod{ObjectMeta: metadata(req, s.class)}
	pod.Annotations[annotationConfig] = squidConfig(config)
	pod.Annotations[annotationSafeToEvict] = "false"
	probe := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString(portName)}}
	pod.Spec = corev1.PodSpec{
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		RestartPolicy:                 corev1.RestartPolicyAlways,
		TerminationGracePeriodSeconds: new(int64(terminationGraceSeconds)),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   new(true),
			RunAsUser:      new(squidUser),
			RunAsGroup:     new(squidUser),
			FSGroup:        new(squidUser),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name:      containerName,
			Image:     s.image,
			Command:   []string{"squid", "-N", "-f", configDir + "/" + configFile},
			Ports:     []corev1.ContainerPort{{Name: portName, ContainerPort: config.Port, Protocol: corev1.ProtocolTCP}},
			Resources: *s.resources.DeepCopy(),
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false),
				ReadOnlyRootFilesystem:   new(true),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			StartupProbe:   &corev1.Probe{ProbeHandler: probe, PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: startupTries},
			ReadinessProbe: &corev1.Probe{ProbeHandler: probe, PeriodSeconds: 3, TimeoutSeconds: 2, FailureThreshold: 3},
			LivenessProbe:  &corev1.Probe{ProbeHandler: probe, PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 3},
			VolumeMounts:   []corev1.VolumeMount{{Name: "config", MountPath: configDir, ReadOnly: true}},
		}},
		Volumes: []corev1.Volume{{
			Name: "config",
			VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
				Items: []corev1.DownwardAPIVolumeFile{{
					Path:     configFile,
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + annotationConfig + "']"},
				}},
			}},
		}},
	}
	if req.Zone != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: req.Zone}
	}
	if config.Port < firstUnprivilegedPort {
		pod.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
	}
	if config.Authenticate {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: "auth",
			VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName:  req.Name,
				Items:       []corev1.KeyToPath{{Key: passwordFile, Path: passwordFile}},
				DefaultMode: new(int32(0o440)),
			}},
		})
		container := &pod.Spec.Containers[0]
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "auth", MountPath: authDir, ReadOnly: true})
	}
	return pod
}

// newPasswordSecret holds the password file of a pod.
func newPasswordSecret(s settings, req providers.CreateRequest, file []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metadata(req, s.class),
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{passwordFile: file},
	}
}
