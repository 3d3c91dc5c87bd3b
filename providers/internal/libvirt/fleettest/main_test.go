package fleettest

import (
	"os"
	"testing"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }
