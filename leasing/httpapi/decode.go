package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

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
			return bad(wrongType.Field, fmt.Sprintf("must be %s, not %s", jsonKind(wrongType), wrongType.Value))
		}
		return wrongTypeOrSyntax(err, bad)
	}
	if len(strict) == 0 {
		return nil
	}
	if found := strictField.FindStringSubmatch(strict[0].Error()); found != nil {
		return bad(found[2], found[1]+" field")
	}
	return bad("", "the body is not strict JSON")
}

// strictField finds the field in the messages of the strict decoder.
var strictField = regexp.MustCompile(`^(unknown|duplicate) field "(.*)"$`)

// wrongField finds the field in the decoder's message about a value of the wrong type.
var wrongField = regexp.MustCompile(`cannot unmarshal (.+) into Go struct field [^.\s]*\.(\S+) of type (\S+)`)

func wrongTypeOrSyntax(err error, bad func(field, detail string) error) error {
	if found := wrongField.FindStringSubmatch(err.Error()); found != nil {
		return bad(found[2], "must not be a "+found[1])
	}
	return bad("", "the body is not valid JSON")
}

// jsonKind is the JSON word for the Go type that was expected.
func jsonKind(e *json.UnmarshalTypeError) string {
	switch name := e.Type.String(); {
	case strings.HasPrefix(name, "int"), strings.HasPrefix(name, "*int"):
		return "a whole number between -2147483648 and 2147483647"
	case strings.HasPrefix(name, "[]"):
		return "a list of strings"
	case strings.HasPrefix(name, "map"):
		return "an object of strings"
	default:
		return "a string"
	}
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
