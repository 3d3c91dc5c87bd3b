package proxypool

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/objpatch"
)

// annotationPoolKeys on a member lists the keys of labels and annotations that came from the template, so that one that
// leaves the template leaves the member too, and what a person added stays.
const annotationPoolKeys = v1alpha1.GroupName + "/pool-keys"

// annotationAfterTime on a member is the spec.rollout.afterTime that had come when it was made.
const annotationAfterTime = v1alpha1.GroupName + "/after-time"

// Prefixes within annotationPoolKeys.
const (
	keyLabel      = "labels/"
	keyAnnotation = "annotations/"
)

// member is a Proxy of the pool as the plan sees it.
type member struct {
	*v1alpha1.Proxy
	revision string
	// stale members are not what the template asks for.
	stale bool
	// due is why a member is to be replaced; "" when it is not.
	due string
	// unhealthySince is since when it runs and does not work; zero when it does.
	unhealthySince time.Time
	// leaving members are being deleted or are asked to drain; they do not count as replicas.
	leaving  bool
	deleting bool
	// patient members are asked by the pool to drain, without a deadline; kept ones, by the pool too, and it takes them back.
	patient, kept bool
	ready         bool
	available     bool
	leases        int
	// emptied members have no leases and get none any more.
	emptied bool
	reports []Report
	cooling int
	cost    int
	// trouble orders members that do not work: lower goes first.
	trouble trouble
}

type trouble int

const (
	troubleFailed trouble = iota
	troubleNotProvisioned
	troubleNotReady
	troubleNone
)

func (in *Input) newMember(px *v1alpha1.Proxy, updateRevision string) member {
	m := member{Proxy: px, revision: RevisionOf(&px.Spec.ProxyTemplateSpec), trouble: troubleNone}
	m.deleting = !px.DeletionTimestamp.IsZero() || in.Deleted[px.UID]
	m.leaving = m.deleting || len(px.Spec.DrainRequests) > 0
	m.unhealthySince = unhealthySince(px)
	m.stale = m.revision != updateRevision || outOfDate(px) || in.restarted(px)
	ready := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady)
	if m.ready = ready != nil && ready.Status == metav1.ConditionTrue; m.ready {
		m.available = !in.Now.Before(ready.LastTransitionTime.Add(in.minReady()))
	}
	switch {
	case px.Status.Phase == v1alpha1.PhaseFailed:
		m.trouble = troubleFailed
	case !meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned):
		m.trouble = troubleNotProvisioned
	case !m.ready:
		m.trouble = troubleNotReady
	}
	if in.Leases != nil {
		m.leases = in.Leases(px.UID)
	}
	if request := m.drainedByPool(); request != nil && !m.deleting {
		m.patient = request.DeadlineTime == nil
	}
	m.emptied = m.leaving && m.leases == 0 && (in.Emptied == nil || in.Emptied(px))
	if recycle := in.Pool.Spec.Recycle; in.Reports != nil && recycle != nil && recycle.AfterReports != nil {
		m.reports = in.Reports(px.UID)
	}
	for _, cooldown := range px.Status.Cooldowns {
		if cooldown.UntilTime != nil && cooldown.UntilTime.After(in.Now) {
			m.cooling++
		}
	}
	// What is not a number counts as none.
	m.cost, _ = strconv.Atoi(px.Annotations[v1alpha1.AnnotationDeletionCost])
	return m
}

// outOfDate: the provider says that the instance was made from something else than the specification asks for now, as
// after a change of a cloud-init Secret. Members wait for the pool then. Other reasons are no reason to replace: what the
// provider refuses for the member it would refuse for its successor.
func outOfDate(px *v1alpha1.Proxy) bool {
	upToDate := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionUpToDate)
	return upToDate != nil && upToDate.Status == metav1.ConditionFalse && upToDate.Reason == v1alpha1.ReasonSpecChanged
}

// restarted tells whether spec.rollout.afterTime asks for a younger proxy.
func (in *Input) restarted(px *v1alpha1.Proxy) bool {
	after := afterTime(in.Pool, in.Now)
	if after == nil || px.CreationTimestamp.IsZero() || !px.CreationTimestamp.Before(after) {
		return false
	}
	served, err := time.Parse(time.RFC3339, px.Annotations[annotationAfterTime])
	// What is no time counts as none.
	return err != nil || served.Before(after.Time)
}

// afterTime is spec.rollout.afterTime once it has come; nil before, and when there is none.
func afterTime(pool *v1alpha1.ProxyPool, now time.Time) *metav1.Time {
	rollout := pool.Spec.Rollout
	if rollout == nil || rollout.AfterTime == nil || rollout.AfterTime.After(now) {
		return nil
	}
	return rollout.AfterTime
}

// markServed writes on a member that is made which afterTime had come by then.
//
// Whether it has come is judged by the clock of this manager, and when a member was made by that of the API server, in whole
// seconds. With the first one ahead, members made because of it look older than it, and would be replaced again and again
// until the other clock has come there. To wait for that needs a bound for the difference, which nobody knows; so a member
// says itself what it was made for, and is no younger for any later afterTime.
func markServed(px *v1alpha1.Proxy, pool *v1alpha1.ProxyPool, now time.Time) {
	if after := afterTime(pool, now); after != nil {
		px.Annotations[annotationAfterTime] = after.UTC().Format(time.RFC3339)
	}
}

func (in *Input) minReady() time.Duration { return seconds(in.Pool.Spec.MinReadySeconds, 0) }

func seconds(value *int32, fallback time.Duration) time.Duration {
	if value == nil {
		return fallback
	}
	return time.Duration(*value) * time.Second
}

// compareVictims orders members by how little is lost when they go: unleased before leased, then as the user's
// deletion-cost says, then what does not work or not for long enough yet, then old revisions, then what is cooling for the
// most targets, then the newest. Names break ties, so that the same view gives the same victims. Members that are leaving
// are none: they go already.
//
// In a paused pool old revisions come last: their successors are one too many, and to give up the old one for them would be
// what pausing forbids.
func (p *planner) compareVictims(a, b member) int {
	old := -compareBool(a.stale || a.due != "", b.stale || b.due != "")
	if p.paused() {
		old = -old
	}
	return cmp.Or(
		cmp.Compare(min(a.leases, 1), min(b.leases, 1)),
		cmp.Compare(a.cost, b.cost),
		cmp.Compare(a.trouble, b.trouble),
		compareBool(a.available, b.available),
		old,
		-cmp.Compare(a.cooling, b.cooling),
		cmp.Compare(a.leases, b.leases),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		-cmp.Compare(a.Name, b.Name),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

// newProxy is a member of the pool that does not exist yet.
func newProxy(pool *v1alpha1.ProxyPool, name, revision string) *v1alpha1.Proxy {
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pool.Namespace, Name: name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, poolKind)},
		},
		Spec: v1alpha1.ProxySpec{
			Mode: v1alpha1.ModeManaged, ProxyTemplateSpec: *pool.Spec.Template.Spec.DeepCopy(),
			Leasing: v1alpha1.LeasingEnabled, ReplacePolicy: v1alpha1.ReplaceOnDelete, ImmutableReplicas: 1,
		},
	}
	px.Labels, px.Annotations = wantedMetadata(pool, px, revision)
	return px
}

// wantedMetadata are the labels and annotations a member should have: what it has, without what left the template, with
// what the template says.
func wantedMetadata(pool *v1alpha1.ProxyPool, px *v1alpha1.Proxy, revision string) (labels, annotations map[string]string) {
	labels, annotations = cloneOrNew(px.Labels), cloneOrNew(px.Annotations)
	for key := range strings.SplitSeq(annotations[annotationPoolKeys], ",") {
		if name, ok := strings.CutPrefix(key, keyLabel); ok {
			delete(labels, name)
		} else if name, ok := strings.CutPrefix(key, keyAnnotation); ok {
			delete(annotations, name)
		}
	}
	template := pool.Spec.Template.Metadata
	maps.Copy(labels, template.Labels)
	maps.Copy(annotations, template.Annotations)
	labels[v1alpha1.LabelPool], labels[v1alpha1.LabelRevision] = pool.Name, revision
	var keys []string
	for _, name := range slices.Sorted(maps.Keys(template.Labels)) {
		keys = append(keys, keyLabel+name)
	}
	for _, name := range slices.Sorted(maps.Keys(template.Annotations)) {
		keys = append(keys, keyAnnotation+name)
	}
	if delete(annotations, annotationPoolKeys); len(keys) > 0 {
		annotations[annotationPoolKeys] = strings.Join(keys, ",")
	}
	return labels, annotations
}

func cloneOrNew(in map[string]string) map[string]string {
	if in == nil {
		return map[string]string{}
	}
	return maps.Clone(in)
}

// propagation is the patch that brings a member's labels, annotations and those parts of its specification that need no
// replacement to what the template says; empty when they are there.
func propagation(pool *v1alpha1.ProxyPool, m *member) []objpatch.Op {
	var ops []objpatch.Op
	labels, annotations := wantedMetadata(pool, m.Proxy, m.revision)
	if !maps.Equal(labels, m.Labels) {
		ops = append(ops, objpatch.Set("/metadata/labels", labels))
	}
	if !maps.Equal(annotations, m.Annotations) {
		ops = append(ops, objpatch.Set("/metadata/annotations", annotations))
	}
	have, want := &m.Spec, &pool.Spec.Template.Spec
	change := func(path string, have, want any, unset, wantUnset bool) {
		switch {
		case unset && wantUnset || !unset && !wantUnset && equality.Semantic.DeepEqual(have, want):
		case wantUnset:
			ops = append(ops, objpatch.Remove(path))
		default:
			ops = append(ops, objpatch.Set(path, want))
		}
	}
	change("/spec/capacity", have.Capacity, want.Capacity, have.Capacity == nil, want.Capacity == nil)
	change("/spec/egressGroup", have.EgressGroup, want.EgressGroup, have.EgressGroup == "", want.EgressGroup == "")
	change("/spec/deletion", have.Deletion, want.Deletion, have.Deletion == nil, want.Deletion == nil)
	change("/spec/healthCheck", have.HealthCheck, want.HealthCheck, have.HealthCheck == nil, want.HealthCheck == nil)
	if have.ReplacePolicy != v1alpha1.ReplaceOnDelete {
		ops = append(ops, objpatch.Set("/spec/replacePolicy", v1alpha1.ReplaceOnDelete))
	}
	return ops
}
