package kubelet

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// mutants is the default number of changed manifests; MUTANTS overrides it.
const mutants = 3000

// shownVerdicts is the maximum number of differences that are printed with their manifests.
const shownVerdicts = 20

// A base is a valid manifest.
type base struct {
	name string
	kind string
	tree map[string]any
}

// A mutant is a base with one or two values changed.
type mutant struct {
	of      *base
	changes []change
}

func (m mutant) String() string {
	list := make([]string, len(m.changes))
	for i, c := range m.changes {
		list[i] = c.String()
	}
	return m.of.name + ": " + strings.Join(list, ", ")
}

// text returns the manifest as JSON, which is also YAML.
func (m mutant) text(t *testing.T) []byte {
	var tree any = m.of.tree
	for _, c := range m.changes {
		tree = c.apply(tree)
	}
	data, err := json.MarshalIndent(tree, "", " ")
	check(t, err)
	return data
}

// crisp accepts and rejects the same manifests as Kubernetes, except for the differences in
// otherVerdicts and in the table of fields in docs/fields.md. Valid manifests with one or two values
// changed are compared with the validation of the API server, which the kubelet also uses for
// manifests.
func TestSameVerdicts(t *testing.T) {
	seed := verdictSeed(t)
	bases := readBases(t)
	list := chosen(t, bases, rand.New(rand.NewPCG(seed, seed)))
	t.Logf("%d manifests of %d bases; the choice is that of SEED=%d", len(list), len(bases), seed)
	var good []mutant
	for i := range bases {
		good = append(good, mutant{of: &bases[i]})
	}
	list = append(good, list...)
	texts := make([][]byte, len(list))
	for i, m := range list {
		texts[i] = m.text(t)
	}
	ours := validate(t, texts)
	explained, failed := newVerdictReasons(t), 0
	rejected := 0
	for i, m := range list {
		theirs := kubernetesVerdict(texts[i])
		if len(theirs) > 0 {
			rejected++
		}
		if len(m.changes) == 0 && len(ours[i])+len(theirs) > 0 {
			t.Errorf("%s: a good manifest is rejected\ncrisp: %s\nKubernetes: %s", m, said(ours[i]), said(theirs))
			continue
		}
		if explained.verdicts(ours[i], theirs) {
			continue
		}
		if failed++; failed <= shownVerdicts {
			t.Errorf("%s (SEED=%d)\ncrisp: %s\nKubernetes: %s\n%s", m, seed, said(ours[i]), said(theirs), texts[i])
		}
	}
	if failed > shownVerdicts {
		t.Errorf("%d verdicts differ in all", failed)
	}
	t.Logf("Kubernetes rejects %d of %d; %d differences have an explanation", rejected, len(list), explained.count)
}

// verdictSeed returns the seed that selects mutants, SEED or the default.
func verdictSeed(t *testing.T) uint64 {
	seed := uint64(defaultSeed)
	if s := os.Getenv("SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		check(t, err)
	}
	return seed
}

func said(verdict []string) string {
	if len(verdict) == 0 {
		return "valid"
	}
	return strings.Join(verdict, "\n  ")
}

func readBases(t *testing.T) (list []base) {
	files, err := filepath.Glob("testdata/verdicts/*.yaml")
	check(t, err)
	if len(files) == 0 {
		t.Fatal("there are no manifests")
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		check(t, err)
		data, err = yaml.ToJSON(data)
		check(t, err)
		b := base{name: strings.TrimSuffix(filepath.Base(path), ".yaml")}
		check(t, json.Unmarshal(data, &b.tree))
		b.kind = b.tree["kind"].(string)
		list = append(list, b)
	}
	return list
}

// chosen returns random mutants: each changes a random value of a manifest in a random way, so that
// a value with many possible changes is not selected more often. One in four has two changes.
func chosen(t *testing.T, bases []base, random *rand.Rand) (list []mutant) {
	values := map[*base][][]change{} // changes of the same value
	type value struct {
		of      *base
		changes []change
	}
	var every []value
	for i := range bases {
		b := &bases[i]
		values[b] = slices.Collect(maps.Values(byPath(changesOf(b))))
		slices.SortFunc(values[b], func(x, y []change) int { return strings.Compare(x[0].at(), y[0].at()) })
		for _, changes := range values[b] {
			every = append(every, value{b, changes})
		}
	}
	number := mutants
	if s := os.Getenv("MUTANTS"); s != "" {
		var err error
		number, err = strconv.Atoi(s)
		check(t, err)
	}
	one := func(changes []change) change { return changes[random.IntN(len(changes))] }
	for i := range number {
		v := every[random.IntN(len(every))]
		m := mutant{v.of, []change{one(v.changes)}}
		if i%4 == 3 {
			m.changes = append(m.changes, one(values[v.of][random.IntN(len(values[v.of]))]))
		}
		list = append(list, m)
	}
	return list
}

func byPath(list []change) map[string][]change {
	values := map[string][]change{}
	for _, c := range list {
		values[c.at()] = append(values[c.at()], c)
	}
	return values
}

// validate returns the errors of crisp validate for each manifest, as "FIELD: TEXT".
func validate(t *testing.T, texts [][]byte) [][]string {
	dir := t.TempDir()
	for i, text := range texts {
		check(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d.json", i)), text, 0o600))
	}
	cmd := exec.Command(program("crisp"), "validate", "-f", dir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitInvalid {
			t.Fatalf("crisp validate: %v\n%s", err, stderr.String())
		}
	}
	verdicts, valid := make([][]string, len(texts)), make([]bool, len(texts))
	of := func(line string) (i int, text string) {
		rest, ok := strings.CutPrefix(line, dir+"/")
		name, text, ok2 := strings.Cut(rest, ".json:")
		i, err := strconv.Atoi(name)
		if !ok || !ok2 || err != nil {
			t.Fatalf("crisp validate says %q", line)
		}
		return i, text
	}
	for lines := bufio.NewScanner(&stdout); lines.Scan(); {
		i, _ := of(lines.Text())
		valid[i] = true
	}
	lines := bufio.NewScanner(&stderr)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		i, text := of(lines.Text())
		number, rest, ok := strings.Cut(text, ": ")
		if _, err := strconv.Atoi(number); ok && err == nil {
			text = rest
		}
		verdicts[i] = append(verdicts[i], text)
	}
	for i := range texts {
		if valid[i] == (len(verdicts[i]) > 0) {
			t.Fatalf("crisp validate says of a manifest that it is valid: %v, and %q\n%s", valid[i], verdicts[i], texts[i])
		}
	}
	return verdicts
}

// exitInvalid is crisp's exit code for an invalid manifest.
const exitInvalid = 4
