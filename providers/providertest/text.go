package providertest

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"crawl.example.com/egress-proxies-operator/providers"
)

// identity is what never changes of one incarnation.
type identity struct {
	Name, Zone, ID, ProviderID string
	Owner                      providers.Owner
	Hash                       string
	CreatedAt                  time.Time
}

func identityOf(i providers.Instance) identity {
	return identity{i.Name, i.Zone, i.ID, i.ProviderID, i.Owner, i.Hash, i.CreatedAt.UTC().Round(0)}
}

// asked is what an instance has from the request it was made from.
type asked struct {
	Name, Zone string
	Owner      providers.Owner
	Hash       string
}

func askedFor(req providers.CreateRequest) asked {
	return asked{req.Name, req.Zone, req.Owner, req.Hash}
}

func askedOf(i providers.Instance) asked { return asked{i.Name, i.Zone, i.Owner, i.Hash} }

// differences names the fields in which two values of one type differ, as one line; "" when they are equal.
func differences(want, got any) string {
	var all []string
	compare("", reflect.ValueOf(want), reflect.ValueOf(got), &all)
	return strings.Join(all, "; ")
}

func compare(path string, want, got reflect.Value, all *[]string) {
	if _, isTime := reflect.TypeAssert[time.Time](want); want.Kind() == reflect.Struct && !isTime {
		for n := range want.NumField() {
			compare(strings.TrimPrefix(path+"."+want.Type().Field(n).Name, "."), want.Field(n), got.Field(n), all)
		}
		return
	}
	if !reflect.DeepEqual(want.Interface(), got.Interface()) {
		*all = append(*all, fmt.Sprintf("%s: want %s, got %s", path, quoted(want), quoted(got)))
	}
}

func quoted(v reflect.Value) string {
	if v.Kind() == reflect.String {
		return fmt.Sprintf("%q", v.String())
	}
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return fmt.Sprintf("%+v", v.Interface())
}

// describe is an instance without the fields that are empty.
func describe(i providers.Instance) string {
	var all []string
	empty := reflect.ValueOf(providers.Instance{})
	fields := reflect.ValueOf(i)
	for _, field := range reflect.VisibleFields(fields.Type()) {
		if field.Anonymous {
			continue
		}
		value := fields.FieldByIndex(field.Index)
		if !reflect.DeepEqual(value.Interface(), empty.FieldByIndex(field.Index).Interface()) {
			all = append(all, fmt.Sprintf("%s %s", field.Name, quoted(value)))
		}
	}
	return "{" + strings.Join(all, ", ") + "}"
}

// outcome is the answer of a Get.
func outcome(i providers.Instance, err error) string {
	if err != nil {
		return err.Error()
	}
	return describe(i)
}
