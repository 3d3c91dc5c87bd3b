package main

import (
	"errors"

	"github.com/spf13/cobra"

	"crawl.example.com/egress-proxies-operator/internal/providersconfig"
)

func newImportConfigCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "import-config FILE",
		Short: "Print the ProviderClasses that a providers file stands for",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("import-config: exactly one FILE is required")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return providersconfig.Print(cmd.OutOrStdout(), args[0])
		},
	}
}
