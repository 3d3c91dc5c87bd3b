package main

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
)

// devAPIBindAddress is out of reach of others: without a flag the API asks for no token there.
const devAPIBindAddress = "127.0.0.1:8090"

func newDevCommand() *cobra.Command {
	var o coreOptions
	command := &cobra.Command{
		Use:   "dev",
		Short: "Run all managers in one process, on a laptop, against the current kubeconfig context",
		Long: "Runs core and all provider managers in one process. Without --api-auth the HTTP API listens on 127.0.0.1 without\n" +
			"authentication. Admission policies are not asked for. Proxies inside a cluster cannot be probed from outside of it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(o.api.authModes) == 0 && !cmd.Flags().Changed("api-bind-address") {
				o.api.authModes, o.api.bindAddress = []string{httpapi.AuthNone}, devAPIBindAddress
			}
			if o.LeaderElectionNamespace == "" {
				o.LeaderElectionNamespace = leasing.DefaultNamespace
			}
			c, err := o.check()
			if err != nil {
				return err
			}
			return runDev(cmd.Context(), c)
		},
	}
	o.AddFlags(command.Flags())
	o.addFlags(command.Flags())
	return command
}

// runDev runs every manager until ctx ends or one of them fails.
func runDev(ctx context.Context, c *core) error {
	c.SkipNameValidation = true
	c.unguarded = true // the policies name the installation's accounts, not the person who runs this
	flush, err := process(ctx, "dev", c.LogLevel)
	if err != nil {
		return err
	}
	defer flush()
	coreManager, err := newCoreManager(ctx, c)
	if err != nil {
		return err
	}
	group, groupContext := errgroup.WithContext(ctx)
	group.Go(func() error { return start(groupContext, coreManager) })
	all := factories()
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		mgr, err := newProviderManager(ctx, all[kind], providerOptions(c.Options))
		if err != nil {
			return err
		}
		group.Go(func() error {
			if err := start(groupContext, mgr); err != nil {
				return err
			}
			if groupContext.Err() == nil {
				return errors.New("a provider manager stopped")
			}
			return nil
		})
	}
	return group.Wait()
}

// providerOptions are core's options for a provider manager in the same process: metrics and probes are served once.
func providerOptions(o manager.Options) manager.Options {
	o.MetricsBindAddress, o.HealthProbeBindAddress = "0", "0"
	o.WrapLock = nil
	return o
}
