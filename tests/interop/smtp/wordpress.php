<?php
// A mail by the library that WordPress sends with, which runs a plugin's action on each. Prints its
// bytes, as base64.
require 'libphp-phpmailer/autoload.php';

$mail = new PHPMailer\PHPMailer\PHPMailer(true);

function add_action($hook, $action)
{
    global $mail;
    assert($hook === 'phpmailer_init');
    $action($mail);
}

RECIPE

$mail->CharSet = 'UTF-8';
$mail->addAddress('bob@example.org', 'Bob');
$mail->addCC('cy@example.org');
$mail->addBCC('hidden@example.org');
$mail->Subject = 'Grüße ✉';
$mail->addCustomHeader('X-SES-CONFIGURATION-SET', 'other');
$mail->isHTML();
$mail->Body = '<p>Grüße</p>';
$mail->AltBody = "Grüße\n.\n..\nFrom here on\n";
$content = str_repeat(implode('', array_map('chr', range(0, 255))), 20);
$mail->addStringAttachment($content, 'résumé.pdf', 'base64', 'application/pdf');
$mail->send();
echo base64_encode($mail->getSentMIMEMessage());
