package telemetry_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The part of Grafana's published schema that the dashboard uses; in its repository:
// kinds/dashboard/dashboard_kind.cue, packages/grafana-schema/src/common/mudball.cue and the
// panelcfg.cue of the two panels. A field that is not here is rejected, so that a misspelt field
// (except for case), or one that a panel of that kind does not have, is not ignored, as Grafana
// does.
type (
	grafanaDashboard struct {
		Title, UID, Refresh, Timezone string
		Tags                          []string
		SchemaVersion, Version        int
		Editable                      bool
		Time                          struct{ From, To string }
		Templating                    struct{ List []grafanaVariable }
		Annotations                   struct{ List []struct{} }
		Panels                        []grafanaPanel
	}
	grafanaVariable struct {
		Name, Type, Label, Query, Definition, AllValue string
		Datasource                                     *grafanaSource
		Refresh                                        int
		Multi, IncludeAll                              bool
		Current                                        struct{ Text, Value string }
	}
	grafanaSource struct{ Type, UID string }
	grafanaPanel  struct {
		ID                       int
		Title, Description, Type string
		GridPos                  struct{ X, Y, W, H int }
		Datasource               grafanaSource
		FieldConfig              struct {
			Defaults struct {
				Unit   string
				Min    *float64
				Custom json.RawMessage
			}
			Overrides []struct{}
		}
		Options json.RawMessage
		Targets []struct {
			RefID, Expr, LegendFormat string
			Datasource                grafanaSource
		}
	}
	// statOptions has the options of the panel "stat".
	statOptions struct {
		ReduceOptions         struct{ Calcs []string }
		Orientation, TextMode string
	}
	// seriesOptions and seriesFields are for the panel "timeseries".
	seriesOptions struct {
		Legend struct {
			DisplayMode, Placement string
			ShowLegend             *bool
			Calcs                  *[]string
		}
		Tooltip struct{ Mode, Sort string }
	}
	seriesFields struct {
		LineWidth, FillOpacity int
		Stacking               struct{ Mode string }
	}
)

// madeFor is the version of the schema: that of Grafana 10.4, which later releases can read.
const madeFor = 39

func strictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// Grafana can read the dashboard, and the panels do not overlap.
func TestDashboardIsGrafanas(t *testing.T) {
	data, err := os.ReadFile(examples + "grafana-crisp.json")
	if err != nil {
		t.Fatal(err)
	}
	var d grafanaDashboard
	if err := strictly(data, &d); err != nil {
		t.Fatal(err)
	}
	if d.Title == "" || !regexp.MustCompile(`^[A-Za-z0-9_-]{8,40}$`).MatchString(d.UID) || d.SchemaVersion != madeFor || d.Version < 1 || !d.Editable {
		t.Errorf("title %q, uid %q, schema %d, version %d, editable %v", d.Title, d.UID, d.SchemaVersion, d.Version, d.Editable)
	}
	if relative := regexp.MustCompile(`^now(-\d+[smhdwMy])?$`); !relative.MatchString(d.Time.From) || !relative.MatchString(d.Time.To) ||
		!regexp.MustCompile(`^\d+[smhd]$`).MatchString(d.Refresh) || d.Timezone != "browser" {
		t.Errorf("time %v, refresh %q, timezone %q", d.Time, d.Refresh, d.Timezone)
	}
	variables := d.variables(t)
	var ids []int
	for i, p := range d.Panels {
		for _, err := range p.wrong(variables) {
			t.Errorf("panel %d %q: %v", p.ID, p.Title, err)
		}
		if p.ID < 1 || slices.Contains(ids, p.ID) {
			t.Errorf("panel %q: the ID %d is not its own", p.Title, p.ID)
		}
		ids = append(ids, p.ID)
		for _, q := range d.Panels[:i] {
			a, b := p.GridPos, q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("the panels %q and %q are in the same place", q.Title, p.Title)
			}
		}
	}
}

// variables returns the names of the dashboard's variables. The data source is chosen during the
// import, because its ID differs between installations.
func (d *grafanaDashboard) variables(t *testing.T) (names []string) {
	t.Helper()
	for _, v := range d.Templating.List {
		switch {
		case v.Type == "datasource" && v.Query == "prometheus" && v.Name == "datasource":
		case v.Type == "query" && v.Query != "" && v.Query == v.Definition && v.Datasource != nil && *v.Datasource == chosen && slices.Contains(names, "datasource"):
			if v.IncludeAll && (v.AllValue == "" || v.Current.Value != "$__all") {
				t.Errorf("variable %s: all is %q, and first it is %q", v.Name, v.AllValue, v.Current.Value)
			}
		default:
			t.Errorf("variable %+v", v)
		}
		names = append(names, v.Name)
	}
	if len(names) == 0 {
		t.Error("no data source can be chosen")
	}
	return names
}

// chosen is the data source to which the variable refers.
var chosen = grafanaSource{Type: "prometheus", UID: "${datasource}"}

// builtin has the variables of Grafana that queries for Prometheus use.
var builtin = []string{"__rate_interval", "__interval", "__range"}

// units has the units in use from Grafana's list (packages/grafana-data/src/valueFormats). Grafana
// prints an unknown unit by its name.
var units = []string{"short", "reqps", "s", "Bps", "bytes", "percentunit"}

// wrong returns the errors of a panel.
func (p *grafanaPanel) wrong(variables []string) (errs []error) {
	failed := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if g := p.GridPos; g.X < 0 || g.Y < 0 || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
		failed("its place is %+v", g)
	}
	if p.Title == "" || p.Datasource != chosen || !slices.Contains(units, p.FieldConfig.Defaults.Unit) || len(p.Targets) == 0 {
		failed("no title or query, data source %+v, unit %q", p.Datasource, p.FieldConfig.Defaults.Unit)
	}
	var refs []string
	for _, q := range p.Targets {
		if q.RefID == "" || slices.Contains(refs, q.RefID) || q.Datasource != chosen {
			failed("query %q of %+v", q.RefID, q.Datasource)
		}
		refs = append(refs, q.RefID)
		for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(q.Expr+" "+q.LegendFormat+" "+p.Title, -1) {
			if !slices.Contains(variables, m[1]) && !slices.Contains(builtin, m[1]) {
				failed("the variable %s is not set", m[1])
			}
		}
		if bare := regexp.MustCompile(`\{\{\s*\w+\s*\}\}`).ReplaceAllString(q.LegendFormat, ""); strings.ContainsAny(bare, "{}") {
			failed("legend %q", q.LegendFormat)
		}
	}
	return append(errs, p.wrongOptions()...)
}

// wrongOptions returns the errors in the options of the panel's kind.
func (p *grafanaPanel) wrongOptions() (errs []error) {
	oneOf := func(what, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			errs = append(errs, fmt.Errorf("%s is %q, and not one of %q", what, value, allowed))
		}
	}
	switch p.Type {
	case "stat":
		var o statOptions
		if err := strictly(p.Options, &o); err != nil {
			return append(errs, err)
		}
		oneOf("orientation", o.Orientation, "auto", "vertical", "horizontal")
		oneOf("textMode", o.TextMode, "", "auto", "value", "value_and_name", "name", "none")
		if len(o.ReduceOptions.Calcs) == 0 || p.FieldConfig.Defaults.Custom != nil {
			errs = append(errs, fmt.Errorf("it reduces by %q, and has of its own %s", o.ReduceOptions.Calcs, p.FieldConfig.Defaults.Custom))
		}
		// A single series has no name unless the options request it.
		if p.Targets[0].LegendFormat != "" && !strings.Contains(o.TextMode, "name") {
			errs = append(errs, fmt.Errorf("the legend %q is not shown", p.Targets[0].LegendFormat))
		}
	case "timeseries":
		var o seriesOptions
		var f seriesFields
		if err := strictly(p.Options, &o); err != nil {
			return append(errs, err)
		}
		if err := strictly(p.FieldConfig.Defaults.Custom, &f); err != nil {
			return append(errs, err)
		}
		oneOf("legend.displayMode", o.Legend.DisplayMode, "list", "table", "hidden")
		oneOf("legend.placement", o.Legend.Placement, "bottom", "right")
		oneOf("tooltip.mode", o.Tooltip.Mode, "single", "multi", "none")
		oneOf("tooltip.sort", o.Tooltip.Sort, "asc", "desc", "none")
		oneOf("stacking.mode", f.Stacking.Mode, "none", "normal", "percent")
		if o.Legend.ShowLegend == nil || o.Legend.Calcs == nil || f.LineWidth > 10 || f.FillOpacity > 100 {
			errs = append(errs, fmt.Errorf("legend %+v, fields %+v", o.Legend, f))
		}
	default:
		errs = append(errs, fmt.Errorf("a panel of the kind %q is not checked", p.Type))
	}
	return errs
}
