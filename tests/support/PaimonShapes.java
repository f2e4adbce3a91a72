package lakewarden.tests;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.deletionvectors.BitmapDeletionVector;
import org.apache.paimon.deletionvectors.DeletionVector;
import org.apache.paimon.deletionvectors.append.AppendDeleteFileMaintainer;
import org.apache.paimon.deletionvectors.append.BaseAppendDeleteFileMaintainer;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.index.IndexFileMeta;
import org.apache.paimon.io.CompactIncrement;
import org.apache.paimon.io.DataIncrement;
import org.apache.paimon.manifest.FileKind;
import org.apache.paimon.manifest.IndexManifestEntry;
import org.apache.paimon.manifest.ManifestEntry;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.table.sink.StreamTableCommit;
import org.apache.paimon.table.sink.StreamTableWrite;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.utils.CloseableIterator;
import org.apache.paimon.utils.RowDataToObjectArrayConverter;

/** Paimon tables of any columns: bigint, int, string and date. A table with keys has its id and partition as its key. */
public class PaimonShapes {
  private static final ObjectMapper JSON = new ObjectMapper();
  private long commits = 0;

  public void create(Catalog catalog, String name, String columnsJson, boolean keyed, Map options) throws Exception {
    catalog.createDatabase("db", true);
    Schema.Builder schema = Schema.newBuilder();
    schema.column("id", DataTypes.BIGINT());
    List columns = (List) JSON.readValue(columnsJson, List.class);
    List partition = new ArrayList();
    for (Iterator each = columns.iterator(); each.hasNext(); ) {
      List column = (List) each.next();
      partition.add(column.get(0));
      schema.column((String) column.get(0), type((String) column.get(1)));
    }
    schema.partitionKeys(partition);
    if (keyed) {
      List key = new ArrayList(partition);
      key.add("id");
      schema.primaryKey(key);
    }
    schema.options(options);
    catalog.createTable(Identifier.create("db", name), schema.build(), false);
  }

  private static DataType type(String name) {
    if (name.equals("int")) {
      return DataTypes.INT();
    }
    return name.equals("date") ? (DataType) DataTypes.DATE() : (DataType) DataTypes.STRING();
  }

  /** One commit of rows [[id, partition value, ...], ...]; into this bucket, or where the table itself puts them when it is negative. */
  public void write(FileStoreTable table, String rowsJson, int bucket) throws Exception {
    StreamTableWrite write = table.newWrite("writer");
    write = (StreamTableWrite) write.withIOManager(IOManager.create(System.getProperty("java.io.tmpdir")));
    List rows = (List) JSON.readValue(rowsJson, List.class);
    for (Iterator each = rows.iterator(); each.hasNext(); ) {
      InternalRow row = row(table, (List) each.next());
      if (bucket < 0) {
        write.write(row);
      } else {
        write.write(row, bucket);
      }
    }
    Map writeOnly = Collections.singletonMap("write-only", "true");
    StreamTableCommit commit = ((FileStoreTable) table.copy(writeOnly)).newCommit("shapes-" + (++commits));
    commit.commit(Long.MAX_VALUE, write.prepareCommit(true, commits));
    commit.close();
    write.close();
  }

  private static InternalRow row(FileStoreTable table, List values) {
    GenericRow row = new GenericRow(values.size());
    for (int i = 0; i < values.size(); i++) {
      Object value = values.get(i);
      String type = table.rowType().getTypeAt(i).getTypeRoot().name();
      if (value != null && type.equals("BIGINT")) {
        value = Long.valueOf(((Number) value).longValue());
      } else if (value != null && type.equals("DATE")) {
        value = Integer.valueOf((int) java.time.LocalDate.parse((String) value).toEpochDay());
      } else if (value instanceof String) {
        value = BinaryString.fromString((String) value);
      }
      row.setField(i, value);
    }
    return row;
  }

  /** Deletes one row of each file of an append table's partition, by deletion vectors. */
  public void strike(FileStoreTable table, String day, long position) throws Exception {
    Iterator entries = table.store().newScan().plan().files().iterator();
    AppendDeleteFileMaintainer vectors = null;
    while (entries.hasNext()) {
      ManifestEntry entry = (ManifestEntry) entries.next();
      if (entry.partition().getString(0).toString().equals(day)) {
        if (vectors == null) {
          vectors = BaseAppendDeleteFileMaintainer.forUnawareAppend(
              table.store().newIndexFileHandler(), table.snapshotManager().latestSnapshot(), entry.partition());
        }
        DeletionVector vector = new BitmapDeletionVector();
        vector.delete(position);
        vectors.notifyNewDeletionVector(entry.file().fileName(), vector);
      }
    }
    List added = new ArrayList();
    List gone = new ArrayList();
    for (Iterator each = vectors.persist().iterator(); each.hasNext(); ) {
      IndexManifestEntry entry = (IndexManifestEntry) each.next();
      (entry.kind() == FileKind.ADD ? added : gone).add(entry.indexFile());
    }
    List none = Collections.emptyList();
    CommitMessageImpl message = new CommitMessageImpl(vectors.getPartition(), 0, Integer.valueOf(-1),
        new DataIncrement(none, none, none, added, gone), CompactIncrement.emptyIncrement());
    Map writeOnly = Collections.singletonMap("write-only", "true");
    StreamTableCommit commit = ((FileStoreTable) table.copy(writeOnly)).newCommit("shapes-" + (++commits));
    commit.commit(Long.MAX_VALUE, Collections.singletonList(message));
    commit.close();
  }

  /** Every row of the newest snapshot as text, in order. */
  public String rows(FileStoreTable table) throws Exception {
    ReadBuilder read = table.newReadBuilder();
    RecordReader reader = read.newRead().executeFilter().createReader(read.newScan().plan());
    RowDataToObjectArrayConverter values = new RowDataToObjectArrayConverter(table.rowType());
    CloseableIterator rows = reader.toCloseableIterator();
    List found = new ArrayList();
    while (rows.hasNext()) {
      found.add(Arrays.toString(values.convert((InternalRow) rows.next())));
    }
    rows.close();
    Collections.sort(found);
    return JSON.writeValueAsString(found);
  }

  /** Type and number of rows of every index file that the newest snapshot names: ["HASH 20", ...]. */
  public String indexFiles(FileStoreTable table) throws Exception {
    List found = new ArrayList();
    String manifest = table.snapshotManager().latestSnapshot().indexManifest();
    if (manifest != null) {
      Iterator entries = table.store().newIndexFileHandler().readManifest(manifest).iterator();
      while (entries.hasNext()) {
        IndexFileMeta file = ((IndexManifestEntry) entries.next()).indexFile();
        found.add(file.indexType() + " " + file.rowCount());
      }
    }
    Collections.sort(found);
    return JSON.writeValueAsString(found);
  }
}
