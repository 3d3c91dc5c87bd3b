package gcp

import (
	"regexp"
	"slices"
	"strings"

	"crawl.example.com/egress-proxies-operator/providers"
)

// The texts of Compute Engine that say more than its codes do.
var (
	fieldPattern      = regexp.MustCompile(`(?:Invalid value for field|Required field|Invalid value for) '([^']+)'`)
	resourcePattern   = regexp.MustCompile(`The resource '([^']+)' (?:of type '[^']*' )?(?:was not found|already exists)`)
	accountMissing    = regexp.MustCompile(`of type 'serviceAccount' was not found|Service account \S+ does not exist`)
	permissionPattern = regexp.MustCompile(`(?:Required|Permission) '?([a-z]+\.[a-zA-Z.]+)'? (?:permission|denied|is required)`)
	actAsPattern      = regexp.MustCompile(`does not have access to service account|SERVICE_ACCOUNT_ACCESS_DENIED`)
	locationPattern   = regexp.MustCompile(`Permission denied on 'locations/([^']+)' \(or it may not exist\)`)
	quotaPattern      = regexp.MustCompile(`Quota '([A-Za-z0-9_]+)' exceeded`)
	regionPattern     = regexp.MustCompile(`in region ([a-z0-9-]+)`)
	constraintPattern = regexp.MustCompile(`((?:constraints|customConstraints)/[-a-zA-Z0-9_.]*[a-zA-Z0-9])`)
	tokenStatus       = regexp.MustCompile(`status code (\d{3})`)
	codePattern       = regexp.MustCompile(`[A-Z]+(?:_[A-Z]+)+`)
)

// fieldOf is the field of the request that a message names; "" for none.
func fieldOf(message string) string { return group(fieldPattern, message) }

// resourceOf is the resource that a message does not find; "" for none.
func resourceOf(message string) string { return group(resourcePattern, message) }

func group(pattern *regexp.Regexp, text string) string {
	if m := pattern.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// rateCodes are reasons and codes of too many calls. Some of them look like those of a quota.
var rateCodes = []string{
	"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "RESOURCE_OPERATION_RATE_EXCEEDED",
}

// tooFast tells whether what is called a quota is one of calls, and not of things.
func tooFast(message string, codes []string) bool {
	return strings.Contains(message, "Quota exceeded for quota metric") || slices.ContainsFunc(codes, func(c string) bool { return slices.Contains(rateCodes, c) })
}

// lack finds what is missing for a VM, in the message and the codes of an answer or an operation; "" for nothing of that
// kind. Codes have variants, such as _WITH_DETAILS, so that a part of them decides.
func lack(message string, codes []string) (cause, string) {
	all := strings.Join(append([]string{message}, codes...), " ")
	code := ""
	for _, c := range codes {
		if code = codePattern.FindString(c); code != "" {
			break
		}
	}
	text := func(sentence string) string {
		if code != "" {
			return sentence + " (" + code + ")"
		}
		return sentence
	}
	switch {
	case strings.Contains(all, "RESOURCE_POOL_EXHAUSTED"), strings.Contains(all, "resource_availability"):
		return causeStockout, text("the zone has no capacity left for the machine type")
	case strings.Contains(all, "IP_SPACE_EXHAUSTED"):
		return causeAddresses, text("the subnetwork of the class has no address left")
	case strings.Contains(all, "MACHINE_TYPE_UNSUPPORTED"), strings.Contains(all, "configuration_availability"),
		strings.Contains(all, "achine type") && strings.Contains(all, "does not exist in zone"):
		return causeUnsupported, text("the zone does not have the machine type")
	case strings.Contains(all, "quotaExceeded"), strings.Contains(all, "QUOTA_EXCEEDED"), quotaPattern.MatchString(all):
		return causeQuota, text(quotaText(all))
	case strings.Contains(all, "resourceLocations"):
		return causeLocation, text(policyText(all))
	case constraintPattern.MatchString(all), strings.Contains(all, "CONDITION_NOT_MET"), strings.Contains(all, "conditionNotMet"),
		strings.Contains(all, "custom org polic"):
		return causePolicy, text(policyText(all))
	}
	return "", ""
}

func quotaText(text string) string {
	metric, region := group(quotaPattern, text), group(regionPattern, text)
	out := "a quota of the project is used up"
	if metric != "" {
		out = "the project's quota of " + metric + " is used up"
	}
	if region != "" {
		out += " in region " + region
	}
	return out
}

func policyText(text string) string {
	if constraint := group(constraintPattern, text); constraint != "" {
		return "a policy of the organization forbids the machine: " + constraint
	}
	return "a policy of the organization forbids the machine"
}

// refusal is what a part of a request comes from: a field of the Proxy, or one of the class.
type refusal struct {
	part  string
	proxy string
	class string
}

// refusals by a part of the field or resource that Compute Engine names; the first that fits counts.
var refusals = []refusal{
	{part: "sourceImage", proxy: fieldImage},
	{part: "/images/", proxy: fieldImage},
	{part: "imageFamilyViews", proxy: fieldImage},
	{part: "diskSizeGb", class: "diskSizeGb"},
	{part: "diskType", class: "diskType"},
	{part: "machineType", proxy: fieldMachineType},
	{part: "metadata", proxy: fieldCloudInit},
	{part: "networkTier", class: "networkTier"},
	{part: "subnetwork", class: "subnetwork"},
	{part: "network", class: "network"},
	{part: "tags", class: "networkTag"},
	{part: "scheduling", class: "provisioningModel"},
	{part: "serviceAccount", class: "serviceAccount"},
	{part: "service_account", class: "serviceAccount"},
}

// refused is about an insert that Compute Engine will never take. where is the field or the resource that it names.
func (p *Provider) refused(where, message string, x about) *providers.Error {
	sentence := "Compute Engine refuses the value"
	switch {
	case locationPattern.MatchString(message):
		sentence = "there is no such zone, or the project may not use it"
	case accountMissing.MatchString(message):
		sentence, where = "Compute Engine does not find it", "serviceAccount"
	case strings.Contains(message, "not found"), strings.Contains(message, "cannot be found"), strings.Contains(message, "does not exist"):
		sentence = "Compute Engine does not find it"
	case strings.Contains(message, "smaller than the image"):
		sentence = "is smaller than the image"
	case strings.Contains(message, "custom subnet"):
		sentence = "is required: the network makes no subnetworks by itself"
		where = "subnetwork"
	}
	if where == "zone" || strings.HasSuffix(where, "/zones/"+x.zone) {
		if x.pinned {
			return providers.InvalidField(fieldZone, "%s", sentence)
		}
		return classField("zones", sentence+": one of them")
	}
	for _, r := range refusals {
		if !strings.Contains(where, r.part) {
			continue
		}
		if r.proxy != "" {
			return providers.InvalidField(r.proxy, "%s", sentence)
		}
		return classField(r.class, sentence)
	}
	return providers.InvalidField(fieldClass, "Compute Engine refuses the machine that the class and the Proxy ask for; the log of the manager has its words")
}

// classField is an error about a field of the class, as a Proxy sees it.
func classField(name, sentence string) *providers.Error {
	return providers.InvalidField(fieldClass, "spec.gcp.%s of the class: %s", name, sentence)
}
