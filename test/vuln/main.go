// Vuln runs govulncheck for known vulnerabilities in crisp's programs, and fails for each that has
// no answer.
//
//	vuln [-db URL] [-answers FILE] [-tags TAGS] [PACKAGE …]
//
// A vulnerability counts if a package with it is linked: govulncheck's finer question, whether the
// function is called, often gets wrong answers about calls through interfaces and by reflection. A
// vulnerability that does not apply is answered by a line of answers.txt: its ID, then the reason.
// An answer without a vulnerability also fails, so that the file stays current.
//
// If the database cannot be reached, nothing is checked, and the output says so.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	db := flag.String("db", os.Getenv("GOVULNDB"), "the vulnerability database's `URL`; none: govulncheck's own")
	answers := flag.String("answers", "test/vuln/answers.txt", "the `file` of what does not apply, and why")
	tags := flag.String("tags", "", "build `tags`")
	flag.Parse()
	if err := run(*db, *answers, *tags, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "vuln:", err)
		os.Exit(1)
	}
}

func run(db, answersPath, tags string, packages []string) error {
	text, err := os.ReadFile(answersPath)
	if err != nil {
		return err
	}
	answers, err := parseAnswers(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", answersPath, err)
	}
	args := []string{"tool", "-modfile=test/tools/go.mod", "govulncheck", "-format", "json", "-scan", "package", "-tags", tags}
	if db != "" {
		args = append(args, "-db", db)
	}
	var out, stderr bytes.Buffer
	goTool := cmp.Or(os.Getenv("GO"), "go") // the go of make, which may not be on PATH
	cmd := exec.Command(goTool, append(args, packages...)...)
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		if strings.Contains(stderr.String(), "fetching vulnerabilities") {
			fmt.Printf("known vulnerabilities: NOT CHECKED, the database cannot be reached: %s", stderr.String())
			return nil
		}
		return fmt.Errorf("govulncheck: %w\n%s", err, stderr.String())
	}
	found, modified, err := findings(&out)
	if err != nil {
		return err
	}
	fmt.Printf("known vulnerabilities: %d in what is linked, %d of them answered (database of %s)\n", len(found), len(answers), modified)
	return judge(found, answers)
}

// parseAnswers reads lines of an ID and a reason; # begins a comment.
func parseAnswers(text string) (map[string]string, error) {
	answers := map[string]string{}
	for number, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, reason, _ := strings.Cut(line, " ")
		if reason = strings.TrimSpace(reason); reason == "" {
			return nil, fmt.Errorf("line %d: %s has no reason", number+1, id)
		}
		answers[id] = reason
	}
	return answers, nil
}

// A message is one of govulncheck's output stream; it has only the fields used here.
type message struct {
	Config *struct {
		DBLastModified string `json:"db_last_modified"`
	} `json:"config"`
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string `json:"osv"`
		FixedVersion string `json:"fixed_version"`
		Trace        []struct {
			Module  string `json:"module"`
			Version string `json:"version"`
			Package string `json:"package"`
		} `json:"trace"`
	} `json:"finding"`
}

// findings reads govulncheck's output: the vulnerabilities of linked packages, a sentence about
// each by its ID, and the date of the database.
func findings(r io.Reader) (found map[string]string, modified string, err error) {
	found, summaries := map[string]string{}, map[string]string{}
	decoder := json.NewDecoder(bufio.NewReader(r))
	for {
		var m message
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			return found, modified, nil
		} else if err != nil {
			return nil, "", fmt.Errorf("read what govulncheck printed: %w", err)
		}
		switch {
		case m.Config != nil:
			modified = m.Config.DBLastModified
		case m.OSV != nil:
			summaries[m.OSV.ID] = m.OSV.Summary
		case m.Finding != nil && len(m.Finding.Trace) > 0 && m.Finding.Trace[0].Package != "":
			at := m.Finding.Trace[0]
			fixed := "no version has it fixed"
			if m.Finding.FixedVersion != "" {
				fixed = "fixed in " + m.Finding.FixedVersion
			}
			found[m.Finding.OSV] = fmt.Sprintf("%s: %s %s, %s", summaries[m.Finding.OSV], at.Package, at.Version, fixed)
		}
	}
}

// judge returns an error for each vulnerability without an answer, and for each answer without a
// vulnerability.
func judge(found, answers map[string]string) error {
	var errs []error
	for id, what := range found {
		if _, ok := answers[id]; !ok {
			errs = append(errs, fmt.Errorf("%s: %s", id, what))
		}
	}
	for id := range answers {
		if _, ok := found[id]; !ok {
			errs = append(errs, fmt.Errorf("%s is answered and no longer found: take its line out", id))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
