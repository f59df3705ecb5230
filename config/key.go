package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
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
	switch k.value.Interface().(type) {
	case string:
		if s, ok := v.(string); ok {
			k.value.SetString(s)
			return nil
		}
		return fmt.Errorf("want a string, have %s", kind(v))
	case bool:
		if b, ok := v.(bool); ok {
			k.value.SetBool(b)
			return nil
		}
		return fmt.Errorf("want true or false, have %s", kind(v))
	case Auto:
		switch v := v.(type) {
		case bool:
			k.value.SetString(strconv.FormatBool(v))
			return nil
		case string:
			if v == string(Automatic) {
				k.value.SetString(v)
				return nil
			}
			return fmt.Errorf("want true, false or \"auto\", have %q", v)
		}
		return fmt.Errorf("want true, false or \"auto\", have %s", kind(v))
	case int:
		if n, ok := v.(int64); ok {
			k.value.SetInt(n)
			return nil
		}
		return fmt.Errorf("want an integer, have %s", kind(v))
	case time.Duration:
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf("want a duration such as \"90s\", have %s", kind(v))
		}
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return fmt.Errorf("want a duration such as \"90s\", have %q", s)
		}
		k.value.SetInt(int64(d))
		return nil
	case []string:
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("want a list of strings, have %s", kind(v))
		}
		out := make([]string, 0, len(list))
		for _, e := range list {
			s, ok := e.(string)
			if !ok {
				return fmt.Errorf("want a list of strings, have %s in it", kind(e))
			}
			out = append(out, s)
		}
		k.value.Set(reflect.ValueOf(out))
		return nil
	}
	panic("config: a field of type " + k.value.Type().String())
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
