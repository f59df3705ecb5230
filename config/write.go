package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

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
