package main

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// relistPeriod is the least time between two lists of one kind.
const relistPeriod = 50 * time.Millisecond

// follow calls note with an object before and after each change, nil before it was made and after it is gone, until ctx
// ends. It lists again at once when a watch is broken off: informers wait for many seconds then, and what came and went
// meanwhile would never be seen.
func follow[T interface {
	comparable
	client.Object
}](ctx context.Context, o *observer, c client.WithWatch, started func(), newList func() client.ObjectList, note func(before, after T), options ...client.ListOption) {
	known := map[types.UID]T{}
	var nothing T
	change := func(after T) {
		before := known[after.GetUID()]
		if before == nothing || before.GetResourceVersion() != after.GetResourceVersion() {
			known[after.GetUID()] = after
			o.changes(func() { note(before, after) })
		}
	}
	gone := func(before T) {
		delete(known, before.GetUID())
		o.changes(func() { note(before, nothing) })
	}
	ticker := time.NewTicker(relistPeriod)
	defer ticker.Stop()
	for first := true; ; {
		list := newList()
		if err := c.List(ctx, list, options...); err == nil {
			now := map[types.UID]T{}
			_ = meta.EachListItem(list, func(object runtime.Object) error {
				now[object.(T).GetUID()] = object.(T)
				return nil
			})
			for uid, before := range known {
				if now[uid] == nothing {
					gone(before)
				}
			}
			for _, after := range now {
				change(after)
			}
			if first {
				started()
				first = false
			}
			watchFrom(ctx, c, list, options, func(event watch.Event) bool {
				object, ok := event.Object.(T)
				switch {
				case !ok:
					return false
				case event.Type == watch.Deleted:
					gone(object)
				default:
					change(object)
				}
				return true
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// watchFrom hands over what changes after a list, until the watch ends or take wants no more.
func watchFrom(ctx context.Context, c client.WithWatch, list client.ObjectList, options []client.ListOption, take func(watch.Event) bool) {
	from := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}}
	watcher, err := c.Watch(ctx, list, append(slices.Clone(options), from)...)
	if err != nil {
		return
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		if !take(event) {
			return
		}
	}
}
