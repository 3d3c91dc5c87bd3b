package kubernetes

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

var pods = schema.GroupResource{Resource: "pods"}

func TestValidateClass(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.ProviderClassSpec)
		field  string
	}{
		"bare": {func(*v1alpha1.ProviderClassSpec) {}, ""},
		"everything": {func(s *v1alpha1.ProviderClassSpec) {
			s.Kubernetes = &v1alpha1.KubernetesClass{Image: "localhost/squid:dev", Resources: new(DefaultResources())}
			s.Exposure = &v1alpha1.Exposure{AllowedSourceRanges: []string{"10.0.0.0/8", "2001:db8::/32"}, ConnectPorts: []int32{443, 8443}}
		}, ""},
		"image with a space": {func(s *v1alpha1.ProviderClassSpec) {
			s.Kubernetes = &v1alpha1.KubernetesClass{Image: "squid latest"}
		}, "spec.kubernetes.image"},
		"request above limit": {func(s *v1alpha1.ProviderClassSpec) {
			r := DefaultResources()
			r.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
			s.Kubernetes = &v1alpha1.KubernetesClass{Resources: &r}
		}, "spec.kubernetes.resources.requests[memory]"},
		"negative limit": {func(s *v1alpha1.ProviderClassSpec) {
			s.Kubernetes = &v1alpha1.KubernetesClass{Resources: &corev1.ResourceRequirements{
				Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("-1")},
			}}
		}, "spec.kubernetes.resources.limits[cpu]"},
		"claims": {func(s *v1alpha1.ProviderClassSpec) {
			s.Kubernetes = &v1alpha1.KubernetesClass{Resources: &corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "x"}}}}
		}, "spec.kubernetes.resources.claims"},
		"range": {func(s *v1alpha1.ProviderClassSpec) {
			s.Exposure = &v1alpha1.Exposure{AllowedSourceRanges: []string{"10.0.0.0"}}
		}, "spec.exposure.allowedSourceRanges"},
		"port": {func(s *v1alpha1.ProviderClassSpec) {
			s.Exposure = &v1alpha1.Exposure{ConnectPorts: []int32{443, 65536}}
		}, "spec.exposure.connectPorts[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			problems := NewFactory().Validate(newClass(test.change))
			fields := slices.Collect(func(yield func(string) bool) {
				for _, problem := range problems {
					if !yield(problem.Field) {
						return
					}
				}
			})
			if test.field == "" && len(problems) > 0 || test.field != "" && !slices.Equal(fields, []string{test.field}) {
				t.Errorf("got %v, want one problem of %q", problems, test.field)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	f := newFakeCluster(interceptor.Funcs{})
	for name, test := range map[string]struct {
		runtime providers.Runtime
		class   *v1alpha1.ProviderClass
	}{
		"no reader":     {providers.Runtime{ClusterID: testCluster, Client: f}, newClass(nil)},
		"no client":     {providers.Runtime{ClusterID: testCluster}, newClass(nil)},
		"no cluster id": {providers.Runtime{Client: f, Reader: f}, newClass(nil)},
		"no label":      {providers.Runtime{ClusterID: "a b", Client: f, Reader: f}, newClass(nil)},
		"invalid class": {providers.Runtime{ClusterID: testCluster, Client: f, Reader: f}, newClass(func(s *v1alpha1.ProviderClassSpec) {
			s.Exposure = &v1alpha1.Exposure{AllowedSourceRanges: []string{"x"}}
		})},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := NewFactory().Open(t.Context(), test.class, test.runtime); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestValidateSpecNamesTheField(t *testing.T) {
	provider := newFakeCluster(interceptor.Funcs{}).open(t, newClass(nil))
	for name, test := range map[string]struct {
		change func(*v1alpha1.ProxySpec)
		field  string
	}{
		"plain":        {func(*v1alpha1.ProxySpec) {}, ""},
		"zone":         {func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{Zone: "eu-1"} }, ""},
		"wrong zone":   {func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{Zone: "eu 1"} }, "spec.placement.zone"},
		"machine type": {func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{MachineType: "big"} }, "spec.placement.machineType"},
		"image":        {func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{Image: "evil"} }, "spec.placement.image"},
		"cloud-init":   {func(s *v1alpha1.ProxySpec) { s.CloudInit = &v1alpha1.CloudInit{Inline: "#cloud-config"} }, "spec.cloudInit"},
		"from Secret": {func(s *v1alpha1.ProxySpec) {
			s.CloudInit = &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: "x", Key: "y"}}
		}, "spec.cloudInit"},
		"port": {func(s *v1alpha1.ProxySpec) { s.Port = 0 }, "spec.port"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := newRequest("default", "uid", nil).Spec
			test.change(&spec)
			err := provider.ValidateSpec(&spec)
			var problem *providers.Error
			if test.field == "" {
				if err != nil {
					t.Error(err)
				}
			} else if !errors.As(err, &problem) || problem.Reason != providers.InvalidSpec || problem.Field != test.field {
				t.Errorf("got %v, want InvalidSpec of %s", err, test.field)
			}
		})
	}
}

func TestCredentialsThatCannotWork(t *testing.T) {
	f := newFakeCluster(interceptor.Funcs{})
	provider := f.open(t, newClass(nil))
	for _, c := range []providers.Credentials{
		{}, {Username: "u"}, {Password: "secret-value"}, {Username: "a:b", Password: "secret-value"}, {Username: "#u", Password: "secret-value"},
		{Username: " u", Password: "secret-value"}, {Username: "u", Password: "secret-value\n"}, {Username: "u\x00", Password: "secret-value"},
		{Username: "u", Password: strings.Repeat("secret-value", 100)},
	} {
		req := newRequest("default", "uid", func(r *providers.CreateRequest) { r.Credentials = &c })
		_, err := provider.Create(t.Context(), req)
		if providers.ReasonOf(err) != providers.InvalidSpec || !strings.HasPrefix(providers.StableMessage(err), credentialsField) {
			t.Errorf("got %v, want InvalidSpec of %s", err, credentialsField)
		}
		if err != nil && strings.Contains(err.Error(), "secret-value") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	if err := f.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: newRequest("default", "uid", nil).Name}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod was made: %v", err)
	}
}

func TestPodIsRestricted(t *testing.T) {
	s, _ := read(newClass(nil))
	pod := newPod(s, newRequest("default", "uid", func(r *providers.CreateRequest) {
		r.Zone = "eu-1"
		r.Spec.Port = 443
		r.Credentials = &providers.Credentials{Username: "crawler", Password: "hunter2hunter2"}
	}))
	container := pod.Spec.Containers[0]
	for what, holds := range map[string]bool{
		"no service account token":  !*pod.Spec.AutomountServiceAccountToken,
		"no service links":          !*pod.Spec.EnableServiceLinks,
		"not root":                  *pod.Spec.SecurityContext.RunAsNonRoot && *pod.Spec.SecurityContext.RunAsUser == 13 && *pod.Spec.SecurityContext.RunAsGroup == 13,
		"seccomp":                   pod.Spec.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
		"read-only root":            *container.SecurityContext.ReadOnlyRootFilesystem,
		"no escalation":             !*container.SecurityContext.AllowPrivilegeEscalation,
		"no capabilities":           slices.Equal(container.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}),
		"memory limit":              !container.Resources.Limits.Memory().IsZero(),
		"default image":             container.Image == DefaultImage,
		"zone":                      pod.Spec.NodeSelector[corev1.LabelTopologyZone] == "eu-1",
		"low port":                  len(pod.Spec.SecurityContext.Sysctls) == 1,
		"safe to evict":             pod.Annotations[annotationSafeToEvict] == "false",
		"hash":                      pod.Annotations[v1alpha1.AnnotationInstanceHash] == "v1-0123",
		"grace above shutdown":      *pod.Spec.TerminationGracePeriodSeconds > shutdownSeconds+2,
		"labels of the Proxy":       pod.Labels["geo"] == "local" && pod.Labels[v1alpha1.LabelPool] == "demo",
		"no other reserved label":   pod.Labels[v1alpha1.GroupName+"/made-up"] == "",
		"owner":                     ownerOf(pod) == newRequest("default", "uid", nil).Owner,
		"controller":                metav1.GetControllerOf(pod).UID == "uid",
		"listens on the port":       strings.Contains(pod.Annotations[annotationConfig], "http_port 443\n"),
		"asks for credentials":      strings.Contains(pod.Annotations[annotationConfig], "proxy_auth REQUIRED"),
		"password not in the pod":   !strings.Contains(pod.String(), "hunter2"),
		"user name not in the pod":  !strings.Contains(pod.String(), "crawler"),
		"config within annotations": len(pod.Annotations[annotationConfig]) < 100<<10,
	} {
		if !holds {
			t.Error(what)
		}
	}
}

func TestErrorsOfTheAPIServer(t *testing.T) {
	forbiddenBy := func(text string) error { return apierrors.NewForbidden(pods, "x", errors.New(text)) }
	terminating := apierrors.NewForbidden(pods, "x", errors.New("unable to create new content in namespace n because it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, test := range map[string]struct {
		err  error
		want providers.Reason
		says string
	}{
		"quota":          {forbiddenBy("exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3"), providers.Capacity, "used up"},
		"quota wants":    {forbiddenBy("failed quota: q: must specify limits.cpu for: squid"), providers.Capacity, "spec.kubernetes.resources"},
		"pod security":   {forbiddenBy(`violates PodSecurity "restricted:latest": x`), providers.Capacity, "pod security"},
		"limit range":    {forbiddenBy("maximum memory usage per Container is 1Mi, but limit is 256Mi"), providers.Capacity, "limits or policies"},
		"role":           {forbiddenBy(`User "x" cannot create resource "pods" in API group "" in the namespace "n"`), providers.Auth, "role"},
		"terminating":    {terminating, providers.Unavailable, "being deleted"},
		"quota race":     {apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "q", errors.New("modified")), providers.Capacity, "busy"},
		"unauthorized":   {apierrors.NewUnauthorized("no"), providers.Auth, ""},
		"too many":       {apierrors.NewTooManyRequests("slow down", 7), providers.RateLimited, ""},
		"invalid":        {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", field.ErrorList{field.Invalid(field.NewPath("spec.containers[0].image"), "", "bad")}), providers.InvalidSpec, "spec.containers[0].image"},
		"no namespace":   {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "n"), providers.Unavailable, "namespace does not exist"},
		"internal":       {apierrors.NewInternalError(errors.New("etcd")), providers.Unavailable, ""},
		"deadline":       {context.DeadlineExceeded, providers.Unavailable, ""},
		"no such server": {&http.MaxBytesError{}, providers.Unavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeCluster(interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return test.err }})
			_, err := f.open(t, newClass(nil)).Create(t.Context(), newRequest("n", "uid", nil))
			if got := providers.ReasonOf(err); got != test.want {
				t.Errorf("got %s (%v), want %s", got, err, test.want)
			}
			if message := providers.StableMessage(err); !strings.Contains(message, test.says) {
				t.Errorf("message %q does not say %q", message, test.says)
			}
			if test.want == providers.RateLimited && providers.RetryAfterOf(err).Seconds() != 7 {
				t.Errorf("retry after %s", providers.RetryAfterOf(err))
			}
		})
	}
}

func TestGetBelievesOnlyTheAPIServer(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want providers.Reason
	}{
		"gone":        {apierrors.NewNotFound(pods, "x"), providers.NotFound},
		"other 404":   {apierrors.NewGenericServerResponse(http.StatusNotFound, "get", pods, "x", "404 page not found", 0, true), providers.Unavailable},
		"no resource": {apierrors.NewNotFound(schema.GroupResource{}, ""), providers.Unavailable},
		"forbidden":   {apierrors.NewForbidden(pods, "x", errors.New(`User "u" cannot get resource "pods"`)), providers.Auth},
		"canceled":    {context.Canceled, providers.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeCluster(interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return test.err
			}})
			_, err := f.open(t, newClass(nil)).Get(t.Context(), providers.Ref{Namespace: "n", Name: "x"})
			if got := providers.ReasonOf(err); got != test.want {
				t.Errorf("got %s (%v), want %s", got, err, test.want)
			}
		})
	}
	provider := newFakeCluster(interceptor.Funcs{}).open(t, newClass(nil))
	if _, err := provider.Get(t.Context(), providers.Ref{Name: "x"}); providers.ReasonOf(err) != providers.Unavailable {
		t.Errorf("a reference without a namespace: got %v, want Unavailable", err)
	}
}

func TestForeignObjectsAreLeftAlone(t *testing.T) {
	f := newFakeCluster(interceptor.Funcs{})
	provider := f.open(t, newClass(nil))
	mine := newRequest("n", "uid", func(r *providers.CreateRequest) {
		r.Credentials = &providers.Credentials{Username: "u", Password: "p"}
	})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: mine.Name}, Data: map[string][]byte{"k": []byte("v")}}
	must(t, f.Create(t.Context(), secret))
	if _, err := provider.Create(t.Context(), mine); providers.ReasonOf(err) != providers.Conflict {
		t.Errorf("Create over a foreign Secret: got %v, want Conflict", err)
	}
	must(t, f.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
	if string(secret.Data["k"]) != "v" || len(secret.Data) != 1 {
		t.Errorf("the foreign Secret was changed: %v", secret.Data)
	}

	mine.Credentials = nil
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: mine.Name, UID: "pod-uid"}}
	must(t, f.Create(t.Context(), pod))
	if _, err := provider.Create(t.Context(), mine); providers.ReasonOf(err) != providers.Conflict {
		t.Errorf("Create over a foreign pod: got %v, want Conflict", err)
	}
	for _, ref := range []providers.Ref{refOf(mine), {Namespace: "n", Name: mine.Name, ID: "pod-uid"}} {
		if err := provider.Delete(t.Context(), ref); providers.ReasonOf(err) != providers.Conflict {
			t.Errorf("Delete of a foreign pod: got %v, want Conflict", err)
		}
	}
	instance, err := provider.Get(t.Context(), refOf(mine))
	if err != nil || instance.Owner.UID != "" {
		t.Errorf("Get of a foreign pod: got %+v, %v, want an instance without owner", instance, err)
	}
}

func TestCheckNamesTheMissingRight(t *testing.T) {
	f := newFakeCluster(interceptor.Funcs{Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
		review := object.(*authorizationv1.SelfSubjectAccessReview)
		review.Status.Allowed = review.Spec.ResourceAttributes.Verb != "delete"
		return nil
	}})
	err := f.open(t, newClass(nil)).Check(t.Context())
	if providers.ReasonOf(err) != providers.Auth || !strings.Contains(providers.StableMessage(err), "delete pods") {
		t.Errorf("got %v, want Auth about deleting pods", err)
	}
	if err := newFakeCluster(interceptor.Funcs{}).open(t, newClass(nil)).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestListIsWholeOrAnError(t *testing.T) {
	f := newFakeCluster(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		options := (&client.ListOptions{}).ApplyOptions(opts)
		if options.Continue != "" {
			return apierrors.NewResourceExpired("the continue token is too old")
		}
		if err := c.List(ctx, list, opts...); err != nil {
			return err
		}
		list.SetContinue("more")
		return nil
	}})
	provider := f.open(t, newClass(nil))
	must(t, f.Create(t.Context(), newPod(settings{class: "kubernetes"}, newRequest("n", "uid", nil))))
	instances, err := provider.List(t.Context())
	if providers.ReasonOf(err) != providers.Unavailable || instances != nil {
		t.Errorf("got %v, %v, want nothing and Unavailable", instances, err)
	}
}

func TestStates(t *testing.T) {
	waiting := func(reason string, restarts int32) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: containerName, RestartCount: restarts, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
	running := func(started bool, restarts int32) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: containerName, RestartCount: restarts, Started: &started, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	}
	now := metav1.Now()
	for name, test := range map[string]struct {
		pod  corev1.Pod
		want providers.State
		says string
	}{
		"new": {corev1.Pod{}, providers.StatePending, "the pod is starting"},
		"unschedulable": {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available"},
		}}}, providers.StatePending, "no node can take the pod"},
		"pulling":        {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: waiting("ContainerCreating", 0)}}, providers.StatePending, "the pod is starting"},
		"pull fails":     {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: waiting("ErrImagePull", 0)}}, providers.StatePending, "the image of the class cannot be pulled"},
		"pull backs off": {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: waiting("ImagePullBackOff", 0)}}, providers.StatePending, "the image of the class cannot be pulled"},
		"no squid":       {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, PodIP: "10.0.0.1", ContainerStatuses: waiting("RunContainerError", 0)}}, providers.StatePending, "Squid cannot be started from the image of the class"},
		"not listening":  {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", ContainerStatuses: running(false, 0)}}, providers.StatePending, "the pod is starting"},
		"no address":     {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: running(true, 0)}}, providers.StatePending, "the pod is starting"},
		"running":        {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", ContainerStatuses: running(true, 0)}}, providers.StateRunning, ""},
		"killed":         {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", ContainerStatuses: running(false, 1)}}, providers.StateRunning, "Squid has ended and is started again"},
		"crash loop":     {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", ContainerStatuses: waiting("CrashLoopBackOff", 5)}}, providers.StateRunning, "Squid has ended and is started again"},
		"back":           {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", ContainerStatuses: running(true, 1)}}, providers.StateRunning, ""},
		"evicted":        {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory: 12345"}}, providers.StateFailed, "the pod has failed: Evicted"},
		"ended":          {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, providers.StateFailed, "the pod has ended"},
		"terminating":    {corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", ContainerStatuses: running(true, 0)}}, providers.StateTerminating, "the pod is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			instance := instanceOf(&test.pod)
			if instance.State != test.want || instance.Message != test.says {
				t.Errorf("got %s %q, want %s %q", instance.State, instance.Message, test.want, test.says)
			}
			if test.pod.Status.PodIP != "" && !slices.Equal(instance.Addresses, []string{"10.0.0.1"}) {
				t.Errorf("addresses %v", instance.Addresses)
			}
		})
	}
}

func TestRefsFindThePod(t *testing.T) {
	for name, ref := range map[string]providers.Ref{
		"name":        {Namespace: "n", Name: "x"},
		"provider id": {ProviderID: "pod://n/x"},
		"both":        {Namespace: "n", Name: "x", ProviderID: "pod://other/y"},
	} {
		key, err := keyOf(ref)
		if err != nil || key != (types.NamespacedName{Namespace: "n", Name: "x"}) {
			t.Errorf("%s: got %v, %v", name, key, err)
		}
	}
}
