// Package formats compares what a program writes to disk, or passes to its successor, with what
// earlier releases wrote. For each type there are fixtures, testdata/formats/NAME.1.json and so
// on, one for each format that it ever had: all stay readable, and the last is the one that is
// written today. So a field that is renamed, dropped or added is a diff.
//
// After an intended change, -update (test/golden) adds a fixture; none is ever changed.
package formats

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/test/golden"
)

// dir is where a package has its fixtures.
const dir = "testdata/formats"

// Check fails t if T, with every field set, is written differently from the last fixture of
// name, or if read, nil for json.Unmarshal, loses something of any fixture but the top-level fields
// dropped, which nothing uses any more. Fields that a later release adds are ignored.
func Check[T any](t *testing.T, name string, read func(data []byte, v *T) error, dropped ...string) {
	t.Helper()
	var full T
	fill(reflect.ValueOf(&full).Elem(), name)
	CheckValue(t, name, full, read, dropped...)
}

// CheckValue is Check of a T that consists of other packages' types: full has every field set.
func CheckValue[T any](t *testing.T, name string, full T, read func(data []byte, v *T) error, dropped ...string) {
	t.Helper()
	if read == nil {
		read = func(data []byte, v *T) error { return json.Unmarshal(data, v) }
	}
	today, err := json.MarshalIndent(full, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	today = append(today, '\n')
	last := []byte("none\n")
	n := 1
	for ; ; n++ {
		data, err := os.ReadFile(file(name, n))
		if err != nil {
			break
		}
		last = data
		for _, lost := range losses(data, read, dropped...) {
			t.Errorf("%s: %s", file(name, n), lost)
		}
	}
	switch {
	case bytes.Equal(today, last):
	case golden.Update():
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file(name, n), today, 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is written in another form than the last fixture has; if that is meant, and what older releases wrote is read all the same, -update adds %s:\n%s", name, file(name, n), today)
	}
}

func file(name string, n int) string { return filepath.Join(dir, fmt.Sprintf("%s.%d.json", name, n)) }

// losses returns what read loses of a fixture.
func losses[T any](data []byte, read func([]byte, *T) error, dropped ...string) []string {
	var old any
	if err := json.Unmarshal(data, &old); err != nil {
		return []string{err.Error()}
	}
	more, err := json.Marshal(later(old))
	if err != nil {
		return []string{err.Error()}
	}
	if fields, ok := old.(map[string]any); ok {
		maps.DeleteFunc(fields, func(name string, _ any) bool { return slices.Contains(dropped, name) })
	}
	var lost []string
	for _, text := range [][]byte{data, more} {
		var v T
		if err := read(text, &v); err != nil {
			return append(lost, err.Error())
		}
		again, err := json.Marshal(v)
		if err != nil {
			return append(lost, err.Error())
		}
		var now any
		if err := json.Unmarshal(again, &now); err != nil {
			return append(lost, err.Error())
		}
		if lost = missing("", old, now); len(lost) > 0 {
			break
		}
	}
	return lost
}

// later is old with a field that a later release has added, to each element if it is a list.
func later(old any) any {
	switch old := old.(type) {
	case map[string]any:
		more := maps.Clone(old)
		more["OfALaterRelease"] = map[string]any{"a": []int{1}}
		return more
	case []any:
		var more []any
		for _, v := range old {
			more = append(more, later(v))
		}
		return more
	}
	return old
}

// missing lists what of old is not in now.
func missing(at string, old, now any) (lost []string) {
	switch old := old.(type) {
	case map[string]any:
		fields, _ := now.(map[string]any)
		for k, v := range old {
			lost = append(lost, missing(at+"."+k, v, fields[k])...)
		}
		return lost
	case []any:
		list, _ := now.([]any)
		for i, v := range old {
			var is any
			if i < len(list) {
				is = list[i]
			}
			lost = append(lost, missing(fmt.Sprintf("%s[%d]", at, i), v, is)...)
		}
		return lost
	}
	if old != nil && !reflect.ValueOf(old).IsZero() && !reflect.DeepEqual(old, now) {
		return []string{fmt.Sprintf("%s was %v and is read as %v", strings.TrimPrefix(at, "."), old, now)}
	}
	return nil
}

// ours is the beginning of the import paths whose types are filled. The formats of other types are
// other projects'.
const ours = "github.com/crisp-cri/crisp/"

var at = time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC)

// fill sets all fields of v; strings name their place.
func fill(v reflect.Value, name string) {
	if !v.CanSet() {
		return
	}
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(at))
		return
	case json.RawMessage:
		v.SetBytes([]byte(`{"raw":"` + name + `"}`))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	case reflect.String:
		v.SetString(name)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), name)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), name)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), name)
		}
	case reflect.Map:
		key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, name)
		fill(elem, name)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, elem)
	case reflect.Struct:
		fillFields(v)
	}
}

func fillFields(v reflect.Value) {
	if p := v.Type().PkgPath(); p != "" && !strings.HasPrefix(p+"/", ours) {
		return
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			fillFields(v.Field(i)) // it cannot be set itself if its type is not exported
			continue
		}
		fill(v.Field(i), f.Name)
	}
}
