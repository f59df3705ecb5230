package main

import (
	"slices"
	"testing"
)

// A step that others need comes with them, and a boot with nothing else does not
// happen.
func TestChosen(t *testing.T) {
	for _, c := range []struct {
		o    options
		boot string
		want []string
	}{
		{options{steps: "^package$"}, "apparmor", []string{"install", "package"}},
		{options{steps: "^package$"}, "selinux", nil},
		{options{steps: "^scripts$", boot: "selinux"}, "selinux", []string{"install", "enforce", "scripts"}},
		{options{steps: "^scripts$", boot: "selinux"}, "apparmor", nil},
		{options{steps: "^critest$", quick: true}, "apparmor", nil},
		{options{quick: true}, "selinux", nil},
	} {
		i := slices.IndexFunc(boots, func(b boot) bool { return b.name == c.boot })
		if got, err := c.o.chosen(boots[i]); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v of %s: %v, %v, want %v", c.o, c.boot, got, err, c.want)
		}
	}
}
