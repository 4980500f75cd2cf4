// A mail as Gitea sends it by these settings: modules/setting/mailer.go reads them with the same library
// as here, and services/mailer/sender/smtp.go sends. Gitea sends with wneessen/go-mail, which Debian does
// not have. That library's package `smtp` began as a copy of Go's own, so this program uses Go's own.
package main

import (
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/mail"
	"net/smtp"
	"os"
)

func main() {
	mailer := section(os.Args[1], "mailer",
		"ENABLED", "PROTOCOL", "SMTP_ADDR", "SMTP_PORT", "USER", "PASSWD", "FROM")
	text := func(name string) string { return mailer.Key(name).String() }
	if !mailer.Key("ENABLED").MustBool() || text("PROTOCOL") != "smtps" {
		log.Fatal("the program knows only the protocol smtps")
	}
	host := text("SMTP_ADDR")
	from, err := mail.ParseAddress(text("FROM"))
	check(err)

	address := net.JoinHostPort(host, text("SMTP_PORT"))
	connection, err := tls.Dial("tcp", address, &tls.Config{ServerName: host})
	check(err)
	client, err := smtp.NewClient(connection, host)
	check(err)
	check(client.Auth(smtp.PlainAuth("", text("USER"), text("PASSWD"), host)))
	check(client.Mail(from.Address))
	check(client.Rcpt("ada@example.net"))
	writer, err := client.Data()
	check(err)
	_, err = fmt.Fprintf(writer, "From: %s\r\nTo: ada@example.net\r\nSubject: Hello\r\n\r\nHi\r\n", from)
	check(err)
	check(writer.Close())
	check(client.Quit())
}
