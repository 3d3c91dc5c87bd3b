package vm

import (
	"crypto/sha256"
	"fmt"
	"regexp"

	"github.com/digitalocean/go-libvirt"
	"github.com/google/uuid"
)

// The volumes of a machine are named by its UUID as well as by its name, so that no two incarnations share one.
const (
	diskSuffix = ".qcow2"
	seedSuffix = "-seed.iso"
)

// volumePattern is what the names of such volumes look like.
var volumePattern = regexp.MustCompile(`^[a-z][-a-z0-9]*-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(\.qcow2|-seed\.iso)$`)

func diskName(name, uuid string) string { return name + "-" + uuid + diskSuffix }

func seedName(name, uuid string) string { return name + "-" + uuid + seedSuffix }

// uuidOf is the UUID of a domain as definitions write it.
func uuidOf(d libvirt.Domain) string { return uuid.UUID(d.UUID).String() }

// macOf is the hardware address of an incarnation. The same address would get the lease, and the address, of the one before.
// 52:54:00 is what QEMU's machines have.
func macOf(uuid string) string {
	sum := sha256.Sum256([]byte(uuid))
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", sum[0], sum[1], sum[2])
}
