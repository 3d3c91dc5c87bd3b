package gcp

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// youngOperation is for how long an operation that has not ended is nothing unusual. It is less than the operator waits for
// the outcome of an attempt anyway, providers.DefaultSettle.
const youngOperation = 90 * time.Second

// noteSeparator stands between the parts of a note. Neither names of operations nor of machine types contain it.
const noteSeparator = "/"

// pinnedNote ends the note of an attempt whose zone the Proxy names.
const pinnedNote = "pinned"

// newNote is what is kept of an accepted insert: the operation, the machine type that a zone may turn out not to have, and
// whether another zone would have done.
func newNote(operation string, placement *v1alpha1.Placement) string {
	note := operation + noteSeparator + placement.MachineType
	if placement.Zone != "" {
		note += noteSeparator + pinnedNote
	}
	return note
}

var operationPattern = regexp.MustCompile(`^[a-z][-a-z0-9]{0,254}$`)

func readNote(note string) (operation, machineType string, pinned bool) {
	operation, rest, _ := strings.Cut(note, noteSeparator)
	machineType, rest, _ = strings.Cut(rest, noteSeparator)
	return operation, machineType, rest == pinnedNote
}

// explain asks the operation of an accepted insert, once, why its VM is not there. gone is what get said.
func (p *Provider) explain(ctx context.Context, ref providers.Ref, gone error) error {
	name, machineType, pinned := readNote(ref.Operation)
	if !operationPattern.MatchString(name) {
		return gone
	}
	var operation *computepb.Operation
	err := p.call(ctx, opExplain, func(s *session) (err error) {
		operation, err = s.operations.Get(ctx, &computepb.GetZoneOperationRequest{Project: p.project, Zone: ref.Zone, Operation: name})
		return err
	}, func(a *about) { a.operation = true })
	switch providers.ReasonOf(err) {
	case "":
	case providers.NotFound, providers.Auth:
		// It is forgotten, or the account may not read it. That explains nothing and changes nothing.
		return gone
	default:
		// What it would have said is not known: it may still be making the VM.
		return err
	}
	if operation.GetStatus() != computepb.Operation_DONE {
		begun, err := time.Parse(time.RFC3339, operation.GetInsertTime())
		if err == nil && p.rt.Clock.Since(begun) < youngOperation {
			return gone
		}
		return providers.NewError(providers.Unavailable, opExplain, "Compute Engine is still making the machine", nil)
	}
	failures := operation.GetError().GetErrors()
	if len(failures) == 0 {
		// It was made, and has gone since.
		return gone
	}
	pinned = pinned || !slices.Contains(p.zones, ref.Zone)
	return p.ended(failures, about{insert: true, zone: ref.Zone, name: ref.Name, machineType: machineType, pinned: pinned}, gone)
}

// ended turns the failure of an operation into an outcome of the attempt.
func (p *Provider) ended(failures []*computepb.Errors, x about, gone error) error {
	message, codes := "", []string{}
	for _, f := range failures {
		message += f.GetMessage() + " "
		codes = append(codes, f.GetCode())
		for _, d := range f.GetErrorDetails() {
			codes = append(codes, d.GetErrorInfo().GetReason())
			if quota := d.GetQuotaInfo(); quota != nil {
				message += "Quota '" + lastPart(quota.GetMetricName()) + "' exceeded in region " + quota.GetDimensions()["region"] + " "
			}
		}
	}
	var why *providers.Error
	all := strings.Join(codes, " ")
	lacked, text := lack(message, codes)
	resource := p.inZone(x.zone, resourceOf(message))
	switch {
	case tooFast(message, codes):
		// It lacks nothing but time, and the next attempt comes later anyway.
		return gone
	case lacked != "":
		why = p.lacking(lacked, text, x)
	case strings.Contains(all, "PERMISSION"), actAsPattern.MatchString(all + " " + message):
		why = providers.NewError(providers.Auth, "", lackOfPermission(message), nil)
	case resource == "instances/"+x.name, strings.HasPrefix(resource, "disks/"):
		// Somebody has deleted it, or its disk, while it was made.
		return gone
	case strings.Contains(all, "INVALID"), strings.Contains(all, "NOT_FOUND"), strings.Contains(all, "UNSUPPORTED"):
		where := fieldOf(message)
		if where == "" {
			where = resourceOf(message)
		}
		why = p.refused(where, message, x)
	default:
		// An error of Compute Engine's own. It is no lack of anything, and the attempt is over: it settles as any other.
		return gone
	}
	return &providers.Error{
		Reason: providers.NotFound, Op: opGet, Outcome: why.Reason, Field: why.Field, Message: why.Message, Err: fmt.Errorf("operation: %s: %s", all, redact(strings.TrimSpace(message), "")),
	}
}
