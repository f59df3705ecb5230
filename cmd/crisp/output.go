package main

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// An outputForm is the value of -o: one of some formats, or none.
type outputForm struct {
	chosen *string
	forms  []string
}

func (f outputForm) String() string { return *f.chosen }

func (f outputForm) Type() string { return "string" }

func (f outputForm) Set(form string) error {
	if form != "" && !slices.Contains(f.forms, form) {
		return usageError("want %s", f.words())
	}
	*f.chosen = form
	return nil
}

// words lists the formats: "json, yaml or name".
func (f outputForm) words() string {
	last := len(f.forms) - 1
	return strings.TrimPrefix(strings.Join(f.forms[:last], ", ")+" or "+f.forms[last], " or ")
}

// outputFlag adds -o with these formats. Without the flag output keeps its value.
func outputFlag(fs *pflag.FlagSet, output *string, forms ...string) {
	f := outputForm{output, forms}
	fs.VarP(f, "output", "o", "`form`: "+f.words())
}

// printValue prints a value as kubectl does: as YAML, or as indented JSON.
func (c *cli) printValue(v any, form string) error {
	if form == "json" {
		e := json.NewEncoder(c.stdout)
		e.SetIndent("", "    ")
		return e.Encode(v)
	}
	data, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = c.stdout.Write(data)
	return err
}
