package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A key is one value of a Config, by its dotted name.
type key struct {
	name  string
	table string // "" at the top
	value reflect.Value
}

// Auto is true, false, or decided by crispd.
type Auto string

// The values of an Auto.
const (
	On        Auto = "true"
	Off       Auto = "false"
	Automatic Auto = "auto"
)

// keys lists all keys of c in the order of the struct.
func keys(c *Config) []key {
	var list []key
	var walk func(v reflect.Value, table string)
	walk = func(v reflect.Value, table string) {
		for i := range v.NumField() {
			name := v.Type().Field(i).Tag.Get("toml")
			if name == "" {
				continue
			}
			if table != "" {
				name = table + "." + name
			}
			switch f := v.Field(i); f.Kind() {
			case reflect.Struct:
				walk(f, name)
			case reflect.Map:
				for _, h := range slices.Sorted(maps.Keys(c.Handlers)) {
					walk(reflect.ValueOf(c.Handlers[h]).Elem(), name+"."+h)
				}
			default:
				list = append(list, key{name, table, f})
			}
		}
	}
	walk(reflect.ValueOf(c).Elem(), "")
	return list
}

// assign sets the key to a decoded TOML value. The error names the expected type.
func (k key) assign(v any) error {
	have, want := kind(v), ""
	switch k.value.Interface().(type) {
	case string:
		if s, ok := v.(string); ok {
			k.value.SetString(s)
			return nil
		}
		want = "a string"
	case bool:
		if b, ok := v.(bool); ok {
			k.value.SetBool(b)
			return nil
		}
		want = "true or false"
	case Auto:
		if b, ok := v.(bool); ok {
			v = strconv.FormatBool(b)
		} else if v != string(Automatic) {
			if s, ok := v.(string); ok {
				have = strconv.Quote(s)
			}
			return fmt.Errorf("want true, false or \"auto\", have %s", have)
		}
		k.value.SetString(v.(string))
		return nil
	case int:
		if n, ok := v.(int64); ok {
			k.value.SetInt(n)
			return nil
		}
		want = "an integer"
	case time.Duration:
		want = "a duration such as \"90s\""
		if s, ok := v.(string); ok {
			if d, err := time.ParseDuration(s); err == nil && d >= 0 {
				k.value.SetInt(int64(d))
				return nil
			}
			have = strconv.Quote(s)
		}
	case []string:
		want = "a list of strings"
		list, ok := v.([]any)
		out := make([]string, len(list))
		for i := 0; ok && i < len(list); i++ {
			if out[i], ok = list[i].(string); !ok {
				have = kind(list[i]) + " in it"
			}
		}
		if ok {
			k.value.Set(reflect.ValueOf(out))
			return nil
		}
	case *ShimOptions:
		o, err := parseOptions(v)
		if err == nil {
			k.value.Set(reflect.ValueOf(o))
		}
		return err
	default:
		panic("config: a field of type " + k.value.Type().String())
	}
	return fmt.Errorf("want %s, have %s", want, have)
}

// kind describes the type of a TOML value in messages.
func kind(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case time.Time:
		return "a date"
	case []any, []map[string]any:
		return "a list"
	case map[string]any:
		return "a table"
	}
	return fmt.Sprintf("a %T", v)
}

// Write prints the current configuration as TOML that Load can read, each value with its origin
// as a comment.
func (c *Config) Write(w io.Writer) error {
	var out bytes.Buffer
	table := ""
	for _, k := range keys(c) {
		if k.table != table {
			table = k.table
			fmt.Fprintf(&out, "\n[%s]\n", table)
		}
		name := strings.TrimPrefix(k.name, table+".")
		fmt.Fprintf(&out, "%s = %s # %s\n", name, literal(k.value.Interface()), c.Origin(k.name))
	}
	_, err := w.Write(out.Bytes())
	return err
}

func literal(v any) string {
	switch v := v.(type) {
	case time.Duration:
		return quote(v.String())
	case string:
		return quote(v)
	case Auto:
		if v == Automatic {
			return quote(string(v))
		}
	case []string:
		quoted := make([]string, len(v))
		for i, s := range v {
			quoted[i] = quote(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case *ShimOptions:
		switch {
		case v == nil:
			return quote("")
		case v.Table == nil:
			return quote(v.File)
		}
		return inline(v.Table)
	}
	return fmt.Sprint(v)
}

// quote writes a TOML basic string, which has JSON's escapes.
func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return strings.ReplaceAll(strings.TrimSpace(b.String()), "\x7f", `\u007f`)
}
