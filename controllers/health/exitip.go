package health

import (
	"bytes"
	"encoding/json"
	"net/netip"
)

// maxExitIPBody is the longest body that is looked at for an exit address.
const maxExitIPBody = 4 << 10

// parseExitIP reads an answer that consists of one IP address, or is a JSON object with an "ip" member, which are the
// two forms that such services use. Zones and unspecified addresses are refused.
func parseExitIP(body []byte) (netip.Addr, bool) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 || len(body) > maxExitIPBody {
		return netip.Addr{}, false
	}
	text := string(body)
	if body[0] == '{' {
		var object struct {
			IP string `json:"ip"`
		}
		if json.Unmarshal(body, &object) != nil {
			return netip.Addr{}, false
		}
		text = object.IP
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.IsUnspecified() {
		return netip.Addr{}, false
	}
	return addr.Unmap(), true
}
