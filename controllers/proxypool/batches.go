package proxypool

import (
	"errors"
	"sync"
	"sync/atomic"
)

// inBatches calls do for every item, at most size at a time, and joins the errors.
func inBatches[T any](items []T, size int, do func(T) error) error {
	return call(items, size, false, do)
}

// untilError does the same and begins no more calls once one of them has failed.
func untilError[T any](items []T, size int, do func(T) error) error {
	return call(items, size, true, do)
}

func call[T any](items []T, size int, stop bool, do func(T) error) error {
	errs := make([]error, len(items))
	var failed atomic.Bool
	var running sync.WaitGroup
	slots := make(chan struct{}, max(size, 1))
	for i, item := range items {
		slots <- struct{}{}
		if stop && i >= size && failed.Load() {
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			if errs[i] = do(item); errs[i] != nil {
				failed.Store(true)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}
