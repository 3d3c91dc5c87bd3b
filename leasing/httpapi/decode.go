package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// maxBody is the largest request body that is read, in bytes.
const maxBody = 64 << 10

// readBody reads a request's body. A missing Content-Type and the one that curl -d sends by itself are taken for JSON.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	encodings := r.Header.Values("Content-Encoding")
	if slices.ContainsFunc(encodings, func(e string) bool { return e != "" && !strings.EqualFold(e, "identity") }) {
		return nil, &Error{Status: http.StatusUnsupportedMediaType, Code: wire.CodeUnsupportedMediaType, Field: "Content-Encoding", Detail: "the body must not be encoded"}
	}
	if headers := r.Header.Values("Content-Type"); len(headers) > 1 {
		return nil, &Error{Status: http.StatusUnsupportedMediaType, Code: wire.CodeUnsupportedMediaType, Field: "Content-Type", Detail: "must not be repeated"}
	}
	if header := r.Header.Get("Content-Type"); header != "" {
		media, parameters, err := mime.ParseMediaType(header)
		charset := parameters["charset"]
		known := media == "application/json" || media == "application/x-www-form-urlencoded"
		if err != nil || !known || (charset != "" && !strings.EqualFold(charset, "utf-8")) {
			return nil, &Error{Status: http.StatusUnsupportedMediaType, Code: wire.CodeUnsupportedMediaType, Field: "Content-Type", Detail: "the body must be application/json in UTF-8"}
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, &Error{Status: http.StatusRequestEntityTooLarge, Code: wire.CodeBodyTooLarge, Detail: fmt.Sprintf("the body must not be larger than %d bytes", maxBody)}
		}
		return nil, &Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidBody, Detail: "the body could not be read"}
	}
	return body, nil
}

// decode reads a JSON object strictly: no unknown, repeated or misspelled fields, nothing after it.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	bad := func(field, detail string) error {
		return &Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidBody, Field: field, Detail: detail}
	}
	if len(strings.TrimSpace(string(body))) == 0 {
		return bad("", "the body is empty; it must be a JSON object")
	}
	if !utf8.Valid(body) {
		return bad("", "the body is not UTF-8")
	}
	if body[0] != '{' && strings.TrimSpace(string(body))[0] != '{' {
		return bad("", "the body must be a JSON object")
	}
	strict, err := kjson.UnmarshalStrict(body, into)
	if err != nil {
		if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return bad(wrongValue(body, wrongType))
		}
		return wrongTypeOrSyntax(err, bad)
	}
	if len(strict) > 0 {
		if part := strictField.FindStringSubmatch(strict[0].Error()); part != nil {
			return bad(part[2], part[1]+" field")
		}
		return bad("", "the body is not strict JSON")
	}
	if field := emptyText(body); field != "" {
		return invalid(field, "must not be empty")
	}
	return nil
}

// strictField finds the field in the messages of the strict decoder.
var strictField = regexp.MustCompile(`^(unknown|duplicate) field "(.*)"$`)

// wrongField finds the field in the decoder's message about a value of the wrong type.
var wrongField = regexp.MustCompile(`cannot unmarshal (.+) into Go struct field [^.\s]*\.(\S+) of type (\S+)`)

func wrongTypeOrSyntax(err error, bad func(field, detail string) error) error {
	if part := wrongField.FindStringSubmatch(err.Error()); part != nil {
		return bad(part[2], "must not be "+found(part[1]))
	}
	return bad("", "the body is not valid JSON")
}

// emptyText is a field of the body that is there and is an empty string. Such a one comes from a variable that was not set, and
// would ask for more than was meant: any pool, any target.
func emptyText(body []byte) string {
	if !bytes.Contains(body, []byte(`""`)) {
		return ""
	}
	fields := map[string]json.RawMessage{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &fields); err != nil {
		return "" // it was read before
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if string(fields[name]) == `""` {
			return name
		}
	}
	return ""
}

// wrongValue names the field of a value that has the wrong type, and says what it must be.
func wrongValue(body []byte, e *json.UnmarshalTypeError) (field, detail string) {
	field = e.Field
	expected := "a string"
	switch kind := e.Type.Kind(); {
	case kind == reflect.Int32:
		expected = "a whole number"
		if lowest, highest, ok := seconds(field); ok {
			expected = wholeSeconds(lowest, highest)
		}
	case kind == reflect.Slice:
		expected = "a list of strings"
	case kind == reflect.Map:
		expected = "an object of strings"
	case field == "selector", field == "targets", field == "exclude":
		field = element(body, field)
	}
	detail = "must be " + expected + ", not " + found(e.Value)
	if e.Field == "selector" && (field == "selector" || field == "selector.matchLabels" || field == "selector.matchExpressions") {
		detail += `; labels go directly into selector, as in {"geo": "eu"}`
	}
	return field, detail
}

// element names the first element of a list or an object that is not a string; the field itself when there is none to name.
func element(body []byte, field string) string {
	fields := map[string]json.RawMessage{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &fields); err != nil {
		return field
	}
	text := func(value json.RawMessage) bool { return value[0] == '"' || value[0] == 'n' } // null has a message of its own
	var list []json.RawMessage
	if json.Unmarshal(fields[field], &list) == nil {
		if i := slices.IndexFunc(list, func(value json.RawMessage) bool { return !text(value) }); i >= 0 {
			return fmt.Sprintf("%s[%d]", field, i)
		}
		return field
	}
	object := map[string]json.RawMessage{}
	if json.Unmarshal(fields[field], &object) != nil {
		return field
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if !text(object[key]) && len(validation.IsQualifiedName(key)) == 0 {
			return field + "." + key
		}
	}
	return field
}

// found is the JSON word for what the decoder has found.
func found(value string) string {
	switch value {
	case "string":
		return "a string"
	case "object":
		return "an object"
	case "array":
		return "a list"
	case "bool":
		return "true or false"
	}
	if number, ok := strings.CutPrefix(value, "number "); ok {
		return number
	}
	return "a " + value
}

// emptyBody refuses a body where none is expected; an empty JSON object is let through.
func emptyBody(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	if text := strings.TrimSpace(string(body)); text != "" && text != "{}" {
		return &Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidBody, Detail: "this call takes no body"}
	}
	return nil
}
