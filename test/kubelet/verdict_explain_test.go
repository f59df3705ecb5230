package kubelet

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// otherVerdicts has errors that only one of the two reports, as "crisp FIELD: TEXT" or "kubernetes
// FIELD: TEXT", each with the reason.
var otherVerdicts = []struct{ errors, reason string }{
	{`crisp .*\.stopSignal: `, "an API server drops the field unless ContainerStopSignals is on; then it wants the same"},
	{`crisp .*\.emptyDir\.medium: `, "the kubelet does not start the pod: unknown storage medium"},
	{`crisp .*\.hostIP: `, "no runtime accepts it"},
	{`crisp .*\.(secretName|claimName|(configMap|secret)(Ref|KeyRef)?\.name): .* (subdomain|must be no more than|is missing)`, "no object can have the name, and the pod would wait for it"},
	{`crisp .*\.items\[\d+\]\.key: `, "no ConfigMap and no Secret can have the key, and the pod would wait for it"},
	{`crisp .*\.resourceFieldRef\.containerName: the pod has no container`, "the kubelet does not start the pod"},
	{`crisp .*\.port: the container has no port named`, "the kubelet fails each probe, and the hook"},
	{`crisp .*\.hostPath\.path: .* is not an absolute path`, "the kubelet would take it as relative to its own directory"},
	{`crisp .*\.terminationMessagePath: .*must not contain \.\.`, "it would lead out of the mount of the message"},
	{`crisp .*\.exitCodes\.values: has 0 values`, "a rule that never applies"},
	{`crisp .*(limits|requests|overhead|podFixed)\[.*\]: this node has no such resource`, "crisp's node has no extended resources but devices of containers"},
	{`crisp .*\.limits\[.*\]: \d+ are more than 64 devices`, "more than a node has"},
	{`crisp .*\.serviceAccount(Name)?: .*there are no service accounts`, "there is no API server"},
	{`crisp .*\.priorityClassName: .*there are no PriorityClass objects`, "there is no API server"},
	{`crisp .*\.priority: -?\d+ is not the value of`, "the admission plugin Priority rejects it"},
	{`crisp .*\.priority: \d+: more than 1000000000`, "the admission plugin Priority rejects it"},
	{`crisp spec\.template\.metadata\.namespace: `, "its pods would be in another namespace; an API server ignores the field"},
	{`crisp spec\.(replicas|parallelism): \d+ is not between 0 and 10000`, "more than a node can run"},
	{`crisp spec\.ttlSecondsAfterFinished: only for a job that was applied`, "a file brings the job back"},
	{`crisp spec\.template\.spec\.resources\.requests\[\w+\]: .* is less than the`, "an API server rejects the pods of the template instead"},
	{`crisp spec\.template\.spec\..*\.hostPort: \d+ is taken by`, "an API server rejects the pods of the template instead"},
	{`crisp .*\.nodeName: .* is another node`, "no other node would run it"},
	{`crisp .*\.os\.name: .*crisp runs linux`, "crisp's node runs Linux"},
	{`crisp .*\.fileKeyRef\.path: leads out of the volume`, "no path may be absolute, not even the root"},
	{`crisp spec\.template\.spec\..*\.image: .* has blanks around it`, "an API server rejects the pods of the template instead"},
	{`kubernetes spec\.template\.spec\.resources: .*HugePages require cpu or memory`, "a template has no defaults in Kubernetes; in a pod the defaults are the containers' requests"},
	{`kubernetes .*\.procMount: .*hostUsers`, "the pod is rejected when it is admitted, with ProcMountForbidden, as by the kubelet"},
	{`kubernetes .*\.resources\.claims: `, "an empty list is none"},
	{`kubernetes spec\.resources\[storage\]: `, "a claim is as large as its file system"},
}

// verdictReasons has the reasons why verdicts may differ.
type verdictReasons struct {
	refused map[string]bool // texts of docs/fields.md
	ignored []*regexp.Regexp
	table   []*regexp.Regexp
	count   int
}

var fieldRow = regexp.MustCompile("^\\| `([^`]+)` \\| (?:\\*\\*rejected\\*\\*: (.*)|(ignored).*) \\|$")

func newVerdictReasons(t *testing.T) *verdictReasons {
	e := &verdictReasons{refused: map[string]bool{"not supported yet": true}}
	data, err := os.ReadFile("../../docs/fields.md")
	check(t, err)
	for line := range strings.Lines(string(data)) {
		row := fieldRow.FindStringSubmatch(strings.TrimSpace(line))
		switch {
		case row == nil:
		case row[3] != "":
			path := strings.ReplaceAll(regexp.QuoteMeta(row[1]), `\[\]`, `\[[^]]*\]`)
			path = strings.Replace(path, `spec\.containers`, `spec\.(initC|c)ontainers`, 1)
			e.ignored = append(e.ignored, regexp.MustCompile(`^(spec\.template\.)?`+path+`[.\[:]`))
		default:
			e.refused[row[2]] = true
		}
	}
	if len(e.refused) < 20 || len(e.ignored) < 10 {
		t.Fatal("docs/fields.md has no table of fields")
	}
	for _, line := range otherVerdicts {
		e.table = append(e.table, regexp.MustCompile(`^(`+line.errors+`)`))
	}
	return e
}

// verdicts reports whether the verdicts agree or their difference is explained. If only crisp
// rejects a manifest, one explained error is enough; if only Kubernetes does, all its errors must
// be explained.
func (e *verdictReasons) verdicts(ours, theirs []string) bool {
	if (len(ours) > 0) == (len(theirs) > 0) {
		return true
	}
	explained := len(theirs) > 0
	for _, line := range ours {
		_, text, _ := strings.Cut(line, ": ")
		explained = explained || e.refused[text] || e.lookUp("crisp "+line)
	}
	for _, line := range theirs {
		explained = explained && (e.isIgnored(line) || e.lookUp("kubernetes "+line))
	}
	if explained {
		e.count++
	}
	return explained
}

func (e *verdictReasons) isIgnored(line string) bool {
	for _, is := range e.ignored {
		if is.MatchString(line) {
			return true
		}
	}
	return false
}

func (e *verdictReasons) lookUp(line string) bool {
	for _, is := range e.table {
		if is.MatchString(line) {
			return true
		}
	}
	return false
}
