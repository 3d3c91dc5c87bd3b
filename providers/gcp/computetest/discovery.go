package computetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// discoveryModule holds discoveryFile. The compute client needs the module, so it is in go.mod with it.
const (
	discoveryModule = "google.golang.org/api"
	discoveryFile   = "compute/v1/compute-api.json"
)

// schema is a type of the discovery document, or a parameter.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 string             `json:"type"`
	Format               string             `json:"format"`
	Pattern              string             `json:"pattern"`
	Enum                 []string           `json:"enum"`
	ReadOnly             bool               `json:"readOnly"`
	Properties           map[string]*schema `json:"properties"`
	AdditionalProperties *schema            `json:"additionalProperties"`
	Items                *schema            `json:"items"`
	Location             string             `json:"location"`
	Required             bool               `json:"required"`
	Annotations          struct {
		Required []string `json:"required"`
	} `json:"annotations"`
}

// apiMethod is a method of the discovery document.
type apiMethod struct {
	ID         string             `json:"id"`
	HTTPMethod string             `json:"httpMethod"`
	Path       string             `json:"path"`
	Parameters map[string]*schema `json:"parameters"`
	Request    *schema            `json:"request"`
	Response   *schema            `json:"response"`

	path *regexp.Regexp
}

// document is the discovery document.
type document struct {
	Revision   string             `json:"revision"`
	BasePath   string             `json:"basePath"`
	Parameters map[string]*schema `json:"parameters"`
	Schemas    map[string]*schema `json:"schemas"`
	Resources  map[string]struct {
		Methods map[string]*apiMethod `json:"methods"`
	} `json:"resources"`
}

// loadDocument reads the discovery document from the module cache, once for all servers of a test program.
var loadDocument = sync.OnceValues(func() (*document, error) {
	command := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", discoveryModule)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("find the module %s, which holds the discovery document of Compute Engine: %w", discoveryModule, err)
	}
	dir := strings.TrimSpace(string(out))
	if dir == "" {
		return nil, fmt.Errorf("the module %s, which holds the discovery document of Compute Engine, is not in the module cache of this HOME: go mod download %[1]s", discoveryModule)
	}
	text, err := os.ReadFile(filepath.Join(dir, discoveryFile))
	if err != nil {
		return nil, fmt.Errorf("read the discovery document of Compute Engine: %w", err)
	}
	d := &document{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("read the discovery document of Compute Engine: %w", err)
	}
	variable := regexp.MustCompile(`\{(\w+)\}`)
	for _, r := range d.Resources {
		for _, m := range r.Methods {
			m.path = regexp.MustCompile("^" + variable.ReplaceAllString(m.Path, `(?P<$1>[^/]+)`) + "$")
		}
	}
	return d, nil
})

// match finds the method of a request, with the variables of its path and what is wrong with path and query.
func (d *document) match(httpMethod string, u *url.URL) (*apiMethod, map[string]string, []string) {
	path, ok := strings.CutPrefix(u.Path, d.BasePath)
	if !ok {
		return nil, nil, []string{"the path " + u.Path + " is not below " + d.BasePath}
	}
	for _, r := range d.Resources {
		for _, m := range r.Methods {
			if m.HTTPMethod != httpMethod {
				continue
			}
			if found := m.path.FindStringSubmatch(path); found != nil {
				values, wrong := m.pathValues(found)
				return m, values, append(wrong, d.checkQuery(m, u.Query())...)
			}
		}
	}
	return nil, nil, []string{"no method has " + httpMethod + " " + u.Path}
}

func (m *apiMethod) pathValues(found []string) (values map[string]string, wrong []string) {
	values = map[string]string{}
	for i, name := range m.path.SubexpNames() {
		if name == "" {
			continue
		}
		values[name] = found[i]
		if s := m.Parameters[name]; s != nil && s.Pattern != "" && !fits(s.Pattern, found[i]) {
			wrong = append(wrong, fmt.Sprintf("path parameter %s: %q does not match %s", name, found[i], s.Pattern))
		}
	}
	return values, wrong
}

func (d *document) checkQuery(m *apiMethod, query url.Values) (wrong []string) {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		s := m.Parameters[name]
		if s == nil || s.Location != "query" {
			s = d.Parameters[name]
		}
		if s == nil {
			wrong = append(wrong, "unknown query parameter "+name)
			continue
		}
		for _, value := range query[name] {
			switch {
			case s.Type == "boolean" && !fits(`true|false|True|False`, value), // gcloud writes them as Python does
				s.Type == "integer" && !fits(`-?\d+`, value),
				len(s.Enum) > 0 && !slices.Contains(s.Enum, value):
				wrong = append(wrong, fmt.Sprintf("query parameter %s: illegal value %q", name, value))
			}
		}
	}
	return wrong
}

// check is one comparison of a value with a type.
type check struct {
	*document
	method string
	// request also refuses fields that only answers have and demands the required ones.
	request bool
	// known are values that pass for members of any enumeration: states that Google has not invented yet.
	known map[string]bool
	wrong []string
}

func (c *check) fail(at, format string, args ...any) {
	c.wrong = append(c.wrong, at+": "+fmt.Sprintf(format, args...))
}

// value compares a value as encoding/json decodes it.
func (c *check) value(s *schema, v any, at string) {
	if s.Ref != "" {
		s = c.Schemas[s.Ref]
	}
	switch s.Type {
	case "object":
		if o, ok := v.(map[string]any); ok {
			c.object(s, o, at)
			return
		}
	case "array":
		if list, ok := v.([]any); ok {
			for i, x := range list {
				c.value(s.Items, x, fmt.Sprintf("%s[%d]", at, i))
			}
			return
		}
	case "string":
		if text, ok := v.(string); ok {
			c.text(s, text, at)
			return
		}
	case "integer", "number":
		if _, ok := v.(float64); ok {
			return
		}
	case "boolean":
		if _, ok := v.(bool); ok {
			return
		}
	default:
		return // any
	}
	c.fail(at, "got %T, want %s", v, s.Type)
}

func (c *check) object(s *schema, o map[string]any, at string) {
	for _, name := range slices.Sorted(maps.Keys(o)) {
		property := s.Properties[name]
		if property == nil {
			property = s.AdditionalProperties
		}
		switch {
		case property == nil:
			c.fail(at, "unknown field %q", name)
		case c.request && property.ReadOnly:
			c.fail(at, "field %q is for answers only", name)
		default:
			c.value(property, o[name], at+"."+name)
		}
	}
	if !c.request {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if _, ok := o[name]; !ok && slices.Contains(s.Properties[name].Annotations.Required, c.method) {
			c.fail(at, "required field %q is missing", name)
		}
	}
}

func (c *check) text(s *schema, text, at string) {
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, text) && !c.known[text] {
		c.fail(at, "%q is not one of %s", text, strings.Join(s.Enum, ", "))
	}
	if s.Pattern != "" && !fits(s.Pattern, text) {
		c.fail(at, "%q does not match %s", text, s.Pattern)
	}
	if (s.Format == "int64" || s.Format == "uint64") && !fits(`-?\d+`, text) {
		c.fail(at, "%q is not a number in a string", text)
	}
}

// patterns keeps the compiled patterns: an answer can hold hundreds of VMs.
var patterns sync.Map

// fits matches a whole text.
func fits(pattern, text string) bool {
	compiled, ok := patterns.Load(pattern)
	if !ok {
		compiled, _ = patterns.LoadOrStore(pattern, regexp.MustCompile("^(?:"+pattern+")$"))
	}
	return compiled.(*regexp.Regexp).MatchString(text)
}
