package instance

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// TestBadInput_LeavesWhatRunsAlone: a proxy that works goes on while what was asked for cannot be made, for as long as that
// lasts, and a condition says so where the change is the Proxy's own.
func TestBadInput_LeavesWhatRunsAlone(t *testing.T) {
	tooLong := strings.Repeat("x", secretLimit+1)
	for name, c := range map[string]struct {
		change func(*together, *v1alpha1.Proxy)
		mend   func(*together, *v1alpha1.Proxy)
		// upToDate must have the status and the reason, and mention what is wrong; "" when nothing changed.
		status           metav1.ConditionStatus
		reason, mentions string
		// replaced tells that what mends it asks for another instance.
		replaced bool
	}{
		"image that does not exist": {
			func(s *together, px *v1alpha1.Proxy) {
				s.changes(px, func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Image: fake.InvalidImage} })
			},
			func(s *together, px *v1alpha1.Proxy) {
				s.changes(px, func(px *v1alpha1.Proxy) { px.Spec.Placement.Image = "debian" })
			},
			metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec, "spec.placement.image", true,
		},
		"user data that is too long": {
			func(s *together, px *v1alpha1.Proxy) {
				s.changes(px, func(px *v1alpha1.Proxy) { px.Spec.CloudInit = &v1alpha1.CloudInit{Inline: tooLong} })
			},
			func(s *together, px *v1alpha1.Proxy) {
				s.changes(px, func(px *v1alpha1.Proxy) { px.Spec.CloudInit.Inline = "#cloud-config" })
			},
			metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec, "spec.cloudInit", true,
		},
		"Secret that grows too long": {
			func(s *together, _ *v1alpha1.Proxy) { s.secret("user-data", "data", tooLong, true) },
			func(s *together, _ *v1alpha1.Proxy) { s.secret("user-data", "data", "#cloud-config new", true) },
			metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec, "spec.cloudInit", true,
		},
		"Secret without label": {
			func(s *together, _ *v1alpha1.Proxy) { s.secret("user-data", "data", "#cloud-config old", false) },
			func(s *together, _ *v1alpha1.Proxy) { s.secret("user-data", "data", "#cloud-config old", true) },
			metav1.ConditionUnknown, v1alpha1.ReasonCloudInitError, v1alpha1.LabelCloudInit, false,
		},
		"Secret without the key": {
			func(s *together, _ *v1alpha1.Proxy) { s.secret("user-data", "other", "#cloud-config old", true) },
			func(s *together, _ *v1alpha1.Proxy) { s.secret("user-data", "data", "#cloud-config new", true) },
			metav1.ConditionUnknown, v1alpha1.ReasonCloudInitError, "spec.cloudInit.secretKeyRef.key", true,
		},
		"class that is not valid any more": {
			func(s *together, _ *v1alpha1.Proxy) {
				s.cloud.Reject(field.ErrorList{field.Required(field.NewPath("spec", "parametersRef"), "")})
				s.changeClass(func(class *v1alpha1.ProviderClass) { class.Spec.ProvisionTimeoutSeconds = new(int32(60)) })
			},
			func(s *together, _ *v1alpha1.Proxy) {
				s.cloud.Reject(nil)
				s.changeClass(func(class *v1alpha1.ProviderClass) { class.Spec.ProvisionTimeoutSeconds = nil })
			},
			metav1.ConditionTrue, v1alpha1.ReasonUpToDate, "", false,
		},
		"class that denies user data now": {
			func(s *together, _ *v1alpha1.Proxy) {
				s.changeClass(func(class *v1alpha1.ProviderClass) { class.Spec.UserCloudInit = v1alpha1.UserCloudInitDenied })
			},
			func(s *together, _ *v1alpha1.Proxy) {
				s.changeClass(func(class *v1alpha1.ProviderClass) { class.Spec.UserCloudInit = v1alpha1.UserCloudInitAllowed })
			},
			metav1.ConditionTrue, v1alpha1.ReasonUpToDate, "", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTogether(t, thirdParty, fake.Behaviour{MaxUserData: secretLimit, Stop: 5 * time.Second})
			s.secret("user-data", "data", "#cloud-config old", true)
			px := s.asked("px", func(px *v1alpha1.Proxy) { px.Spec.CloudInit = userDataOf("user-data", "data") })
			s.queue.run("it works", 10*time.Minute, s.works(px))
			first := s.get(px).Status.Instance

			c.change(s, px)
			s.check = func() {
				now := s.get(px)
				if i := now.Status.Instance; i.ID != first.ID || len(i.Addresses) == 0 || now.Status.Phase != v1alpha1.PhaseReady {
					t.Errorf("phase %s, instance %+v", now.Status.Phase, i)
				}
			}
			s.queue.run("", time.Hour, nil)
			upToDate := meta.FindStatusCondition(s.get(px).Status.Conditions, v1alpha1.ConditionUpToDate)
			if upToDate == nil || upToDate.Status != c.status || upToDate.Reason != c.reason || !strings.Contains(upToDate.Message, c.mentions) {
				t.Errorf("UpToDate is %+v", upToDate)
			}
			if n := s.cloud.Mutations(); n != 1 {
				t.Errorf("%d Creates and Deletes, want the one Create", n)
			}

			s.check = func() {}
			c.mend(s, px)
			if c.replaced {
				s.queue.run("the replacement", 10*time.Minute, func() bool {
					return s.works(px)() && isUpToDate(s.get(px)) && s.get(px).Status.Instance.ID != first.ID
				})
			} else {
				s.queue.run("", 10*time.Minute, nil)
			}
			now := s.get(px)
			if !isUpToDate(now) || (now.Status.Instance.ID != first.ID) != c.replaced {
				t.Errorf("after it was put right: %+v", now.Status)
			}
		})
	}
}
