package providertest

import (
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// Harness says how to reach a provider under test. What it makes must come to run by itself while Tick is called.
//
// The fields of the second half are optional: they say what a provider takes and reach behind it. A check that needs one
// that is not set is skipped and says which; a provider should leave out only what it cannot have.
type Harness struct {
	Factory providers.Factory
	// Runtime for Open. Its Clock must be the one that Tick moves; the Logger is the suite's own.
	Runtime providers.Runtime
	// Class makes a valid class. Different names are different classes; the same name is the same class.
	Class func(name string) *v1alpha1.ProviderClass
	// Namespace of the owners; "" means default.
	Namespace string
	// Spec makes a valid specification, without a zone where that may be left out.
	Spec func() v1alpha1.ProxySpec
	// Tick lets some time pass: it moves a fake clock or waits a moment.
	Tick func()
	// Patience is how many ticks a start or a deletion may take.
	Patience int

	// Invalid are specifications that ValidateSpec must refuse, by the field that it must name.
	Invalid map[string]v1alpha1.ProxySpec
	// InvalidClasses are classes that Validate must refuse, by the field that it must name.
	InvalidClasses map[string]*v1alpha1.ProviderClass
	// UserData for the instances; nil where the provider takes none. A line is added to it at its end.
	UserData []byte
	// UserDataLimit is how much user data an instance takes, in bytes; 0 where there is none or no limit.
	UserDataLimit int
	// Credentials for the instances; nil where the provider takes none.
	Credentials *providers.Credentials
	// Secrets of the class itself, such as its token: no answer and no line of the log may contain them.
	Secrets []string
	// Zones that a specification may name. Of two or more, Place must be able to choose.
	Zones []string
	// PageSize is how many instances one answer to a listing holds, so that more than two answers are tried; 0 where there
	// are no pages.
	PageSize int

	// Calls is how many calls have reached what is behind the provider.
	Calls func() int
	// Exists tells the truth about an instance, past the provider. The Zone of the reference is the one that Place chose.
	Exists func(ref providers.Ref) bool
	// Missing changes a request so that it needs something that is not there, by what is missing: an image, a network, a
	// namespace, a zone.
	Missing map[string]func(req *providers.CreateRequest)
	// Shrink takes the last of Zones out of what the class names, for Providers that are opened after it, until restore is
	// called. The account still reaches it.
	Shrink func() (restore func())
	// Foreign puts something of the reference's name there that is not the operator's, and takes it away after the test. The
	// Zone of the reference is the one that Place chose.
	Foreign func(t testing.TB, ref providers.Ref)
	// Fail makes what is behind the provider fail until restore is called, as such things do for Unavailable, Auth,
	// RateLimited or, when something is created, Capacity. A nil restore says that it cannot.
	Fail func(reason providers.Reason) (restore func())
	// RetryAfter is what is asked to be waited when Fail fails with RateLimited; 0 where the other side does not say.
	RetryAfter time.Duration
	// Hang makes calls to what is behind the provider hang until their context ends or restore is called.
	Hang func() (restore func())
	// Partial are the ways in which a listing can lack something, by what it lacks.
	Partial map[string]Partial
}

// Partial is a way in which a listing lacks something but not all. There should be one in which a later call for the
// list fails, and one in which the other side says beside its answer that something is missing, where it does that.
type Partial struct {
	// Hide makes a part out of reach until restore is called: a later page, the last zone, a host.
	Hide func() (restore func())
	// Shown is how many instances the other side has listed since Hide. When it shows none, nobody can tell that a provider
	// would pass them on.
	Shown func() int
}

// Run checks a provider against the contract, docs/provider-contract.md. newHarness makes a Harness for each check.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) { c.run(t, newHarness(t)) })
	}
}

// check is one rule of the contract. It takes a testing.TB so that its verdict can be tested as well.
type check struct {
	name string
	run  func(testing.TB, Harness)
}

// checks are the whole suite, in the order of a life. The contract refers to them by name.
func checks() []check {
	return []check{
		{"ClassIsAccepted", classIsAccepted},
		{"InvalidClassNamesItsField", invalidClassNamesItsField},
		{"TimingIsSound", timingIsSound},
		{"LocalMethodsMakeNoCalls", localMethodsMakeNoCalls},
		{"SpecIsChecked", specIsChecked},
		{"PlaceIsStable", placeIsStable},
		{"PlaceLeavesOutTried", placeLeavesOutTried},
		{"PlaceSpreads", placeSpreads},
		{"LostPlacesAreAsked", lostPlacesAreAsked},

		{"UnknownIsNotFound", unknownIsNotFound},
		{"LifeOfAnInstance", lifeOfAnInstance},
		{"NamesOfFullLength", namesOfFullLength},
		{"MessagesAreStable", messagesAreStable},
		{"ManyAtOnce", manyAtOnce},
		{"AnotherProviderSeesAll", anotherProviderSeesAll},
		{"EventsNameOwners", eventsNameOwners},
		{"HostsAreReported", hostsAreReported},

		{"CreateIsIdempotent", createIsIdempotent},
		{"CreateAtTheSameTime", createAtTheSameTime},
		{"CreateForAnotherOwnerIsConflict", createForAnotherOwnerIsConflict},
		{"CreateRevivesNothing", createRevivesNothing},
		{"LongUserDataIsInvalid", longUserDataIsInvalid},
		{"MissingThingIsNotNotFound", missingThingIsNotNotFound},
		{"UnmarkedIsLeftAlone", unmarkedIsLeftAlone},

		{"DeleteIsIdempotent", deleteIsIdempotent},
		{"DeleteWhileStarting", deleteWhileStarting},
		{"DeleteSparesOtherIncarnations", deleteSparesOtherIncarnations},
		{"DeleteSparesOtherClusters", deleteSparesOtherClusters},
		{"GoneMeansGone", goneMeansGone},
		{"NextIncarnationIsAnother", nextIncarnationIsAnother},

		{"ListIsComplete", listIsComplete},
		{"ListHasNothingElse", listHasNothingElse},
		{"ListHasWhatIsBeingDeleted", listHasWhatIsBeingDeleted},
		{"ListedReferenceIsEnough", listedReferenceIsEnough},
		{"PartialListIsAnError", partialListIsAnError},

		{"UnreachableIsUnavailable", unreachableIsUnavailable},
		{"RefusedCredentialsAreAuth", refusedCredentialsAreAuth},
		{"NoRoomIsCapacity", noRoomIsCapacity},
		{"ThrottlingIsRateLimited", throttlingIsRateLimited},
		{"CancelledCallIsUnavailable", cancelledCallIsUnavailable},
		{"HangingCallEndsWithItsContext", hangingCallEndsWithItsContext},
		{"ErrorsAreStable", errorsAreStable},
		{"SecretsStaySecret", secretsStaySecret},
		{"ClosedProviderAnswers", closedProviderAnswers},
		{"CloseDuringCalls", closeDuringCalls},
	}
}
